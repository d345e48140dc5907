"""Cohorts: when one starts, which groups make its global batch, how surplus and stale rows end, and the cut.

Invariants: cohorts are cut and stepped oldest first; a settled group has one fate; membership of a micro-batch and its
advantages never change after the cut.
"""
