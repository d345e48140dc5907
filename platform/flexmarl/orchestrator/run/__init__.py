"""The life of a run: its verbs, attempts, pauses, lost and recalled devices, progress, and what holds between calls.

Invariants: at most one verb is in flight; attempts are numbered without a gap, and at most one is open.
"""
