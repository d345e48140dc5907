"""A model of the rollout workers' own time: an event loop each, which does all that has come to it, then sends it off.

So turns that come together go to the engines together, and while a worker is at work nothing new reaches these. Each
command is fetched by itself, so the first turns of one go off before another one is begun with. An episode that is over
is some work as well, about that of a turn, and is told of as soon as that is done: so groups end one after the other.

Invariants: an episode stays with one worker; what is asked of a worker is done in the order of asking, once.
"""

from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from flexmarl.contracts import events as e
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.rollout.groups import Places
from flexmarl.simulator.scenarios.scenario import Delays

Then = Callable[[], None]
END = 1
"""An episode that is over is worked on like so many turns."""


class Asked(NamedTuple):
    command: int
    """Whose first turns they are; 0: they are not the first ones."""
    turns: int
    then: Then
    ends: bool = False
    """Nothing goes off to engines, so nothing waits for what else is done."""


class Worker:
    def __init__(self, clock: Clock, turn: float, hands: "Hands") -> None:
        self._clock, self._turn, self._hands = clock, turn, hands
        self._asked: list[Asked] = []
        self._busy = False

    def take(self, asked: Asked) -> None:
        """Put work behind the rest."""
        self._asked.append(asked)
        if not self._busy:
            self._busy = True
            self._clock.after(0.0, self._begin)

    def _begin(self) -> None:
        """Do all that has come by now, up to where another command begins."""
        own = list(takewhile(lambda one: one.command == self._asked[0].command, self._asked))
        del self._asked[: len(own)]
        self._busy = bool(own)
        if not own:
            return
        each, spent = self._turn * self._hands.pace(), 0.0
        for one in own:
            spent += each * one.turns
            if one.ends:
                self._clock.after(spent, one.then)
        self._clock.after(spent, self._send, [one.then for one in own if not one.ends])

    def _send(self, done: list[Then]) -> None:
        for then in done:
            then()
        self._begin()


class Hands:
    def __init__(self, clock: Clock, delays: Delays, places: Places) -> None:
        self.busy = delays.turn > 0.0
        """Whether turns are any work at all."""
        self.places = places
        """How many episodes play at once."""
        self.pace: Callable[[], float] = lambda: 1.0
        """How many times as long work takes that begins now."""
        self._clock, self._settle_s = clock, delays.settle
        self._workers = [Worker(clock, delays.turn, self) for _ in range(delays.workers)]

    def take(self, key: int, turns: int, then: Then, command: int = 0) -> None:
        """Do what so many turns of the episode of a key need, then go on; the first ones name their command."""
        self._of(key).take(Asked(command, turns, then))

    def end(self, key: int, then: Then) -> None:
        """Do what the end of the episode of a key needs, then go on."""
        if self.busy:
            self._of(key).take(Asked(0, END, then, ends=True))
        else:
            then()

    def settle(self, told: Callable[[e.Event], None], fact: e.Event) -> None:
        """Tell that a group is over, once its rows are written."""
        if self._settle_s:
            self._clock.after(self._settle_s * self.pace(), told, fact)
        else:
            told(fact)

    def _of(self, key: int) -> Worker:
        return self._workers[key % len(self._workers)]
