"""A search over the mechanism space, and the bound that no schedule is below.

Invariant: what is found is a scenario that anybody can play again, at the devices and tasks that were given. Imports
whatever simulates; neither `prediction` nor `published`.
"""
