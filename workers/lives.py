"""When the host of a lease gives up: its children died too often, or hung too often. Pure.

Deaths and hangs have limits of their own. A child that cannot start dies five times within seconds; one that hangs
needs seconds or minutes each time, so its limit looks back much longer.
"""

from collections import deque

DEATHS, DEATH_WINDOW_S = 5, 60.0
HANGS, HANG_WINDOW_S = 3, 3600.0
"""So many within the window end the lease: something is broken that a restart does not mend."""
BACKOFF_S = 0.2


class Lives:
    """Counts the lost lives of one lease's children."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._hangs: deque[float] = deque(maxlen=HANGS)

    def lost(self, now: float, hung: bool) -> str:
        """Count a lost life; returns how often, in words, when there should be no other, else nothing."""
        lives, most, window = (self._hangs, HANGS, HANG_WINDOW_S) if hung else (self._deaths, DEATHS, DEATH_WINDOW_S)
        lives.append(now)
        recent = [moment for moment in lives if now - moment < window]
        return f"{most} times in {window:.0f} s" if len(recent) >= most else ""

    def pause_s(self, now: float) -> float:
        """Return how long to wait before the next life: longer after each death in a row."""
        recent = sum(now - moment < DEATH_WINDOW_S for moment in self._deaths)
        return float(BACKOFF_S * 2 ** max(0, recent - 1))
