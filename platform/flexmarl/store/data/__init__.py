"""What runs produce and train on: samples, groups, micro-batches, payloads, versions, checkpoints; their retirement.

Invariants: a row and the fact that speaks of it are written in one transaction; samples never change; a payload is
removed only after every row that names it.
"""
