"""Rows that a run exported, of this installation or another one, imported under a name."""
