"""A model of the rollout workers' own time: each works on one turn after the other.

Invariants: an episode stays with one worker; what is asked of a worker is done in the order of asking.
"""

from flexmarl.simulator.clock import Action, Clock
from flexmarl.simulator.scenario import Delays


class Hands:
    def __init__(self, clock: Clock, delays: Delays) -> None:
        self._clock, self._turn = clock, delays.turn
        self._until = [0.0] * delays.workers

    def take(self, key: int, turns: int, then: Action, *arguments: object) -> None:
        """Do what so many turns of the episode of a key need, then go on; at once where that costs nothing."""
        if not self._turn:
            then(*arguments)
            return
        worker = key % len(self._until)
        self._until[worker] = max(self._clock.now, self._until[worker]) + turns * self._turn
        self._clock.at(self._until[worker], then, *arguments)
