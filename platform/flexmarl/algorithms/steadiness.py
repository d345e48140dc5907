"""What keeps a setting still that follows measured figures: holds that double with each reversal, and when what was
learned of a setting no longer holds. Pure.

The size of a fleet (`scaling`) and the settings that a running run is proposed (`replanning`) keep the same rules: a
change against the last one's direction waits for twice the hold, the next one for four times, and so on; what was
learned holds until the time per step has changed by a quarter.
"""

MOVED = 1.25
"""Ratio of step times from which on what was learned about a setting does not hold any more."""
MOST_REVERSALS = 10


def least_hold_s(hold_s: float, measured_s: float, reversals: int, *, reverses: bool) -> float:
    """Return how long after the last change the next one may follow, in seconds.

    `measured_s`: what it takes to measure once, which a reversal waits for at the least, and twice as long.
    """
    return max(hold_s, measured_s) * float(2 ** (reversals + 1)) if reverses else hold_s


def counted(reversals: int, *, reverses: bool) -> int:
    """Return the reversals after a change."""
    return min(MOST_REVERSALS, reversals + reverses)


def has_moved(before_s: float, now_s: float) -> bool:
    """Tell whether steps take so much more or less time that what was learned with the former is open again."""
    return not 1.0 / MOVED <= now_s / before_s <= MOVED
