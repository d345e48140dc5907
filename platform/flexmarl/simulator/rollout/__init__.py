"""Rollout workers on a virtual clock: groups are played turn by turn, or episodes as a whole, until they settle.

Invariant: turns go where the routers of real runs send them, and whoever asked is told once that a group settled, by
facts as real workers tell them. Imports `scenarios` and `devices`.
"""
