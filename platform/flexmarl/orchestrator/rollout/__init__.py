"""Episode groups in flight: rollout commands, and engines that serve one version at a time with what they play.

Invariants: a group is played under one vector of versions; an open group belongs to one rollout command.
"""
