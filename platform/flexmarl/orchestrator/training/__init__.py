"""Train steps and what follows one: accumulation, commits, checkpoints and their retention, series, evaluation.

Invariants: a micro-batch counts in one gradient sum; a version is committed once; evaluation feeds no step.
"""
