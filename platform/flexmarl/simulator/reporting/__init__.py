"""What is said of a simulation: its figures, named faults of scheduling, and the invariants that every one must keep.

Invariant: looked at from outside; a run that is watched decides the same as one that is not. Imports all that makes a
run: `scenarios`, `devices`, `rollout` and `cluster`.
"""
