"""A model of what gives episodes their rewards: each takes its time, so many at once, first come first served.

With a barrier, nobody is scored while an episode plays: a stage that waits for all of the one before.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from flexmarl.simulator.clock import Clock


class Scoring:
    def __init__(self, clock: Clock, scorers: int | None, barrier: bool) -> None:
        self._clock, self._barrier = clock, barrier
        self._free = scorers
        self._playing: set[int] = set()
        """Episodes that are not over; noted only where somebody waits for them."""
        self._queue: deque[tuple[float, Callable[..., None], Any]] = deque()

    def begun(self, episode: object) -> None:
        """An episode plays."""
        if self._barrier:
            self._playing.add(id(episode))

    def over(self, episode: object) -> None:
        """An episode plays no more."""
        if self._barrier:
            self._playing.discard(id(episode))
            self._next()

    def score(self, seconds: float, done: Callable[..., None], episode: Any) -> None:
        """Call `done(episode)` once somebody has worked on it for so long; it is over."""
        self._queue.append((seconds, done, episode))
        self._playing.discard(id(episode))
        self._next()

    def _next(self) -> None:
        while self._queue and not self._playing and self._free != 0:
            seconds, done, episode = self._queue.popleft()
            if self._free is not None:
                self._free -= 1
            self._clock.after(seconds, self._done, done, episode)

    def _done(self, done: Callable[..., None], episode: Any) -> None:
        if self._free is not None:
            self._free += 1
            self._next()
        done(episode)
