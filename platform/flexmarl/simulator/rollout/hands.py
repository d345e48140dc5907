"""A model of the rollout workers' own time: an event loop each, which does all that has come to it, then sends it off.

So turns that come together go to the engines together, and while a worker is at work nothing new reaches these. Each
command is fetched by itself, so the first turns of one go off before another one is begun with.

Invariants: an episode stays with one worker; what is asked of a worker is done in the order of asking, once.
"""

from collections.abc import Callable
from itertools import takewhile

from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.rollout.groups import Places
from flexmarl.simulator.scenarios.scenario import Delays

Then = Callable[[], None]


class Worker:
    def __init__(self, clock: Clock, turn: float, hands: "Hands") -> None:
        self._clock, self._turn, self._hands = clock, turn, hands
        self._asked: list[tuple[int, int, Then]] = []
        self._busy = False

    def take(self, command: int, turns: int, then: Then) -> None:
        """Put what so many turns need behind the rest; they are the first ones of a command, or not: 0."""
        self._asked.append((command, turns, then))
        if not self._busy:
            self._busy = True
            self._clock.after(0.0, self._begin)

    def _begin(self) -> None:
        """Do all that has come by now, up to where another command begins."""
        own = list(takewhile(lambda one: one[0] == self._asked[0][0], self._asked))
        del self._asked[: len(own)]
        self._busy = bool(own)
        if own:
            self._clock.after(self._turn * self._hands.pace() * sum(turns for _, turns, _ in own), self._send, own)

    def _send(self, done: list[tuple[int, int, Then]]) -> None:
        for _, _, then in done:
            then()
        self._begin()


class Hands:
    def __init__(self, clock: Clock, delays: Delays, places: Places) -> None:
        self.busy = delays.turn > 0.0
        """Whether turns are any work at all."""
        self.places = places
        """How many episodes play at once."""
        self.settle_s = delays.settle
        """Until the rows of a group are written."""
        self.pace: Callable[[], float] = lambda: 1.0
        """How many times as long work takes that begins now."""
        self._workers = [Worker(clock, delays.turn, self) for _ in range(delays.workers)]

    def take(self, key: int, turns: int, then: Then, command: int = 0) -> None:
        """Do what so many turns of the episode of a key need, then go on; the first ones name their command."""
        self._workers[key % len(self._workers)].take(command, turns, then)
