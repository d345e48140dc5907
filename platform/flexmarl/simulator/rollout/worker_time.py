"""A model of the rollout workers' own time: an event loop each, which does all that has come to it, then sends it off.

So turns that come together go to the engines together, and while a worker is at work nothing new reaches these. Each
command is fetched by itself, so the first turns of one go off before another one is begun with.

Invariants: an episode stays with one worker; what is asked of a worker is done in the order of asking, once.
"""

from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from flexmarl.contracts import events as e
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.rollout.groups import EpisodeSlots
from flexmarl.simulator.scenarios.scenario import Delays

Then = Callable[[], None]


class QueuedWork(NamedTuple):
    command: int
    """Whose first turns they are; 0: they are not the first ones."""
    turns: int
    then: Then


class Worker:
    def __init__(self, host: Clock, turn: float) -> None:
        self._host, self._turn = host, turn
        self._asked: list[QueuedWork] = []
        self._busy = False

    def take(self, asked: QueuedWork) -> None:
        """Put work behind the rest."""
        self._asked.append(asked)
        if not self._busy:
            self._busy = True
            self._host.after(0.0, self._begin)

    def _begin(self) -> None:
        """Do all that has come by now, up to where another command begins."""
        own = list(takewhile(lambda one: one.command == self._asked[0].command, self._asked))
        del self._asked[: len(own)]
        self._busy = bool(own)
        if own:
            self._host.after(self._turn * sum(one.turns for one in own), self._send, own)

    def _send(self, done: list[QueuedWork]) -> None:
        for one in done:
            one.then()
        self._begin()


class WorkerTime:
    def __init__(self, host: Clock, delays: Delays, places: EpisodeSlots) -> None:
        self.busy = delays.turn > 0.0
        """Whether turns are any work at all."""
        self.places = places
        """How many episodes play at once."""
        self._host, self._settle_s = host, delays.settle
        self._workers = [Worker(host, delays.turn) for _ in range(delays.workers)]

    def take(self, key: int, turns: int, then: Then, command: int = 0) -> None:
        """Do what so many turns of the episode of a key need, then go on; the first ones name their command."""
        self._workers[key % len(self._workers)].take(QueuedWork(command, turns, then))

    def settle(self, told: Callable[[e.Event], None], fact: e.Event) -> None:
        """Tell that a group is over, once its rows are written."""
        if self._settle_s:
            self._host.after(self._settle_s, told, fact)
        else:
            told(fact)
