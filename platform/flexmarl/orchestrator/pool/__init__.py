"""Devices of pools: what runs request, how the arbiter grants it between runs, and the sentences for what is lacking.

Invariants: the arbiter is pure and knows runs by their demands alone; a device has one holder; a grant is a gang or
nothing.
"""
