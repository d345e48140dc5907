"""Chance by key: what happens to a turn depends on which turn it is, never on when or where it is simulated.

So two schedulers are compared on the same replies, environments and failures (common random numbers).
"""

from statistics import NormalDist

_MASK = (1 << 64) - 1
_NORMAL = NormalDist()


def mixed(state: int, part: int) -> int:
    """Return the next 64-bit state of a key that one more number belongs to (the finaliser of SplitMix64)."""
    state = (state ^ part) + 0x9E3779B97F4A7C15 & _MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31


def uniform(state: int, part: int) -> float:
    """Return a number between 0 and 1, neither of them, that belongs to a key."""
    return ((mixed(state, part) >> 12) + 0.5) * 2.0**-52


def normal(state: int, part: int) -> float:
    """Return a number of the standard normal distribution that belongs to a key."""
    return _NORMAL.inv_cdf(uniform(state, part))
