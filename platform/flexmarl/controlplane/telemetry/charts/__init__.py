"""Series of a run: their definitions, points thinned for charts, and points that scripts add."""
