"""What a run would take, or would have taken: how fast things are by the rows of runs, and specifications played so.

Invariant: every figure has a range and a source, which a prediction keeps; nothing is better known here than its rows
tell. Imports whatever simulates; neither `search` nor `published`.
"""
