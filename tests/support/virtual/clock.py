"""A clock that only moves when it is told to, and the seeded durations of everything that takes time.

Invariants: actions run in the order of their times, equal times in the order in which they were asked for; nothing
reads a real clock or an unseeded generator, so equal seeds give equal histories.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Let something happen in `delay` seconds."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now + max(delay, 0.0), self._asked, action))

    def step(self) -> None:
        """Go to the next action and let it happen."""
        at, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        action()

    def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Let things happen until a condition holds; False when it does not hold in time."""
        limit = self.now + seconds
        while not done():
            if not self._heap or self._heap[0][0] > limit:
                return False
            self.step()
        return True

    def pass_by(self, seconds: float) -> None:
        """Let everything happen that is due within `seconds`."""
        limit = self.now + seconds
        while self._heap and self._heap[0][0] <= limit:
            self.step()
        self.now = limit


@dataclass(frozen=True, slots=True)
class Durations:
    """Medians in seconds; a log-normal spread stretches each of them."""

    hint: float = 0.004
    """From a commit to the process it concerns."""
    resend: float = 0.4
    """When nobody took the hint."""
    driver: float = 0.002
    turn: float = 0.05
    accumulate: float = 0.03
    step: float = 0.02
    load: float = 0.02
    unload: float = 0.02
    """Until what runs has ended."""
    bind: float = 0.05
    start: float = 0.3
    checkpoint: float = 0.05
    ttl: float = 1.5
    """Life of a token or lease that nobody renews."""
    spread: float = 0.6
    """Sigma of the logarithm."""


@dataclass
class Dice:
    """Every chance of a world, from one seed."""

    seed: int
    durations: Durations = field(default_factory=Durations)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def took(self, median: float) -> float:
        """Draw how long something takes."""
        return median * self.random.lognormvariate(0.0, self.durations.spread)

    def of(self, *key: object) -> random.Random:
        """Return a generator of its own for a key: the same whenever and however often it is asked for."""
        return random.Random(repr((self.seed, *key)))
