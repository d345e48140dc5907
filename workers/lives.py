"""When the host of a lease gives up: its children died too often, or hung too often. Pure.

Deaths and hangs have limits of their own. A child that works and dies five times within a minute is broken; one that
dies before it was ever ready may need half a minute for each start, and one that hangs minutes, so their limits look
back much longer. One that takes long to start and dies soon after it was ready never dies five times within a minute:
such lives are counted in a row, until one lasts. Deaths for lack of memory have the lowest limit, for each of them may
cost the host's other processes their lives.
"""

from collections import deque
from math import inf

DEATHS, DEATH_WINDOW_S = 5, 60.0
STARTS, START_WINDOW_S = 5, 3600.0
HANGS, HANG_WINDOW_S = 3, 3600.0
MEMORY, MEMORY_WINDOW_S = 3, 3600.0
"""So many within the window end the lease: something is broken that a restart does not mend."""
YOUNG, YOUNG_S = 8, 60.0
"""So many lives in a row that ended within this time of being ready end the lease, however long each took to start."""
BACKOFF_S = 0.2


class Lives:
    """Counts the lost lives of one lease's children."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._starts: deque[float] = deque(maxlen=STARTS)
        """Deaths before it was ready, since it last was."""
        self._hangs: deque[float] = deque(maxlen=HANGS)
        self._memory: deque[float] = deque(maxlen=MEMORY)
        self._young = 0

    def lost(self, now: float, hung: bool, ready_s: float | None = inf, memory: bool = False) -> str:
        """Count a lost life; returns how often, in words, when there should be no other, else nothing.

        `ready_s`: how long it had been ready, None when it never was. `memory`: it died for lack of it.
        """
        if hung:
            return _often(self._hangs, now, HANGS, HANG_WINDOW_S)
        dying = _often(self._deaths, now, DEATHS, DEATH_WINDOW_S)
        if memory:
            dying = dying or _often(self._memory, now, MEMORY, MEMORY_WINDOW_S)
        if ready_s is None:
            return dying or _often(self._starts, now, STARTS, START_WINDOW_S)
        self._starts.clear()
        self._young = self._young + 1 if ready_s < YOUNG_S else 0
        in_a_row = f"{YOUNG} times in a row within {YOUNG_S:.0f} s of being ready" if self._young >= YOUNG else ""
        return dying or in_a_row

    def pause_s(self, now: float) -> float:
        """Return how long to wait before the next life: longer after each death in a row."""
        recent = sum(now - moment < DEATH_WINDOW_S for moment in self._deaths)
        return float(BACKOFF_S * 2 ** max(0, recent - 1))


def _often(lives: deque[float], now: float, most: int, window_s: float) -> str:
    lives.append(now)
    recent = [moment for moment in lives if now - moment < window_s]
    return f"{most} times in {window_s:.0f} s" if len(recent) >= most else ""
