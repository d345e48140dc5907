"""A clock of work: the cores of a host, shared evenly by all who want one.

One second of it is a second of work that has a core for itself. Where more want a core than there are, each has its
even part of all cores, and the clock goes that much slower; it never goes faster than time. Beside those whose work is
told of there are others (drivers, nodes, rollout workers, the database), of which is known how many they are in the
mean; they slow work down, and are slowed down beside work. Whether episodes are played and trainers have commands, on
which their number depends, is looked at when someone begins or stops to work.

Invariants: work that began earlier and needs no more is never done later; whoever began to work stops once.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from flexmarl.simulator.devices.clock import Action, Clock
from flexmarl.simulator.scenarios.scenario import Host


class Cores(Clock):
    """`goes_on` tells whether episodes are played, and whether trainers have commands."""

    def __init__(self, clock: Clock, host: Host, goes_on: Callable[[], tuple[bool, bool]]) -> None:
        self._clock, self._host, self._goes_on = clock, host, goes_on
        self._working = 0
        self._rate = 1.0
        self._worked, self._at = 0.0, clock.now
        """Work until the last look, and when that was."""
        self._looks = 0
        super().__init__()

    @property
    def now(self) -> float:
        """Seconds of work since the simulation began."""
        return self._worked + (self._clock.now - self._at) * self._rate

    @now.setter
    def now(self, worked: float) -> None:
        self._worked, self._at = worked, self._clock.now

    @property
    def real(self) -> float:
        return self._clock.now

    def at(self, when: float, action: Action, *arguments: Any) -> None:
        self._ask(when if when > (now := self.now) else now, action, arguments)

    def after(self, seconds: float, action: Action, *arguments: Any) -> None:
        self._ask(self.now + max(0.0, seconds), action, arguments)

    def work(self, seconds: float, action: Action, *arguments: Any) -> None:
        self._turn(1)
        self.after(seconds, self._worked_off, action, arguments)

    def begin(self) -> None:
        self._turn(1)

    def end(self) -> None:
        self._turn(-1)

    def _ask(self, when: float, action: Action, arguments: tuple[Any, ...]) -> None:
        self._asked += 1
        heappush(self._due, (when, self._asked, action, arguments))
        if self._due[0][1] == self._asked:
            self._look()

    def _worked_off(self, action: Action, arguments: tuple[Any, ...]) -> None:
        self._turn(-1)
        action(*arguments)

    def _turn(self, more: int) -> None:
        self._working += more
        rate = self._host.rate(self._working, *self._goes_on()) if self._working else 1.0
        if rate != self._rate:
            self.now = self.now
            self._rate = rate
            self._look()

    def _look(self) -> None:
        """Be called when what is due next is done, as it stands now; earlier requests are void."""
        self._looks += 1
        if self._due:
            self._clock.after((self._due[0][0] - self.now) / self._rate, self._called, self._looks)

    def _called(self, look: int) -> None:
        if look != self._looks:
            return
        self.now, _, action, arguments = heappop(self._due)
        self._look()
        action(*arguments)
