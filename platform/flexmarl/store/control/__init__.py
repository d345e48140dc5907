"""Rows by which processes act on each other: commands, facts for the driver, leases, nodes, engines, heartbeats.

Invariants: the driver writes under (owner, fence) in one transaction; a command is taken under a token and finished
once; a device has at most one lease that has not ended, and one of a trainer that shares it.
"""
