"""Which devices a run should have: pools, numbers, devices of an engine, under a budget, a deadline or a lag bound.

A closed form tells what a step takes on every legal set of devices; the simulator decides among the best of these, and
corrects the closed form where it was wrong. Imports `prediction`; nothing of the simulator imports it.
"""
