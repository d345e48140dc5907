"""A virtual clock: what happens next, in order of time and, at the same moment, of asking.

Invariants: time never goes back; equal requests are served in equal order, so a simulation is as deterministic as what
it calls.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the simulation began."""
        self._due: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._asked = 0
        self._halted = False

    @property
    def real(self) -> float:
        """Return the time, whatever this is a clock of."""
        return self.now

    @property
    def events(self) -> int:
        """Count the actions carried out: those that were asked for and are not still to come."""
        return self._asked - len(self._due)

    def at(self, when: float, action: Action, *arguments: Any) -> None:
        """Call `action(*arguments)` at a moment, at once if it has passed."""
        self._asked += 1
        heappush(self._due, (when if when > self.now else self.now, self._asked, action, arguments))

    def after(self, seconds: float, action: Action, *arguments: Any) -> None:
        """Call `action(*arguments)` so much later."""
        self._asked += 1
        heappush(self._due, (self.now + seconds if seconds > 0.0 else self.now, self._asked, action, arguments))

    def work(self, seconds: float, action: Action, *arguments: Any) -> None:
        """Call `action(*arguments)` once so much work is done, which begins now."""
        self.after(seconds, action, *arguments)

    def begin(self) -> None:
        """Note that someone works from now on; by this clock everybody has a core."""

    def end(self) -> None:
        """Note that someone stops to work."""

    def step(self) -> bool:
        """Go on to what is next and do it. Return False when nothing is left to do."""
        if not self._due:
            return False
        self.now, _, action, arguments = heappop(self._due)
        action(*arguments)
        return True

    def play(self) -> bool:
        """Go on until someone asks to halt. Return False when nothing is left to do."""
        due = self._due
        self._halted = False
        while due:
            self.now, _, action, arguments = heappop(due)
            action(*arguments)
            if self._halted:
                return True
        return False

    def halt(self) -> None:
        """Let `play` return behind what is done now: whoever plays has something to look at."""
        self._halted = True
