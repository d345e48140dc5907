"""Policies that several trainer ranks share: rendezvous, process group, sharded learner, and who is in which gang."""
