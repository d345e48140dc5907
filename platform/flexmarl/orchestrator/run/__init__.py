"""The life of a run: its verbs, attempts, pauses, lost and recalled devices, progress, and what holds between calls.

Invariants: at most one verb is in flight; a terminal status is final; a run that ended holds no device.
"""
