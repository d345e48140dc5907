"""The state of a run as plain values: the tree, the commands in flight, sums, ages and what lists show of the past.

Invariants: nothing here decides; a state and its JSON are the same value (`snapshots`); every index beside an entry
follows that entry and is rebuilt when the state is read.
"""
