"""How far this machine's clock is from the database's, from requests that are made anyway.

A sample is the time that the database told, the middle of the request by this machine's clock, and how long the request
took; half of that bounds its error, as in NTP (RFC 5905, section 8). Of the last few the shortest counts.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

SAMPLES = 16
"""As many heartbeats are looked back: a clock that was set is seen within so many seconds."""


class Dated(Protocol):
    """An answer with the database's time in it, seconds since 1970; 0 where it tells none."""

    at: float


T = TypeVar("T", bound=Dated)


class ClockOffset:
    """The last samples. Written by one thread at a time."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        """(round trip, the database's clock less this machine's), both in seconds."""

    def timed(self, ask: Callable[[], T]) -> T:
        """Ask, and take a sample of the answer."""
        began, since = self._wall(), self._steady()
        answer = ask()
        took = self._steady() - since
        if answer.at:
            self._samples.append((took, answer.at - began - took / 2))
        return answer

    def facts(self) -> dict[str, object]:
        """Return what the shortest of the last samples says, to the millisecond; nothing before the first."""
        samples = list(self._samples)
        if not samples:
            return {}
        took, offset = min(samples, key=lambda sample: sample[0])
        return {"clock_offset_s": round(offset, 3), "clock_round_trip_s": round(took, 3)}
