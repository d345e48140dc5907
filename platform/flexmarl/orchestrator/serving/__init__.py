"""Engines of a run: which policies have a place on which engine, which weights each must hold, and when they change.

Invariants: an engine is asked for a version only when that version exists or its turns wait for it; weights that open
groups are pinned to are not withdrawn.
"""
