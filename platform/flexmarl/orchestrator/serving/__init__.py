"""Engines of a run: which policies have a place on which engine, which weights each must hold, and when they change.

Invariants: no engine is asked to load a version before it is committed; weights that open groups are pinned to are not
withdrawn.
"""
