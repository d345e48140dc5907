"""Engines as fleets: how fast turns are answered that many engines share evenly.

A pool is those turns that the same weights may answer, and the engines that hold them. Its turns are spread over these
as evenly as whole turns can be, which is what sending each to the least loaded engine comes to.

Invariants: a pool without engines has no slots and makes nothing; slots and cache that are taken are given back once;
a pool that no episode uses is forgotten.
"""

from collections.abc import Callable
from math import floor, inf

import numpy as np
from numpy.typing import NDArray

from flexmarl.simulator.devices.fleet import SimulatedFleet
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.scenarios.scenario import EngineModel

Numbers = NDArray[np.float64]
Engines = tuple[int, ...]


class Pools:
    def __init__(
        self, fleet: SimulatedFleet, model: EngineModel, times: Callable[[str], float] = lambda policy: 1.0
    ) -> None:
        self.loads: dict[int, float] = {}
        """Lease -> turns that it answers at a time, as found last."""
        self.last = np.zeros(0)
        """Seconds per token of each pool, as found last."""
        self._fleet, self._model, self._times = fleet, model, times
        self._numbers: dict[tuple[str, int], int] = {}
        self._turns: list[SimulatedTurn | None] = []
        """Of each pool one like its turns; None where there is no pool."""
        self._users: list[int] = []
        self._taken = np.zeros((2, 0))
        """Slots and cache of each pool."""
        self._engines: list[Engines] = []
        self._until: dict[Engines, float] = {}
        """When all prompts are computed that were asked for."""
        self._seen = -1

    def __len__(self) -> int:
        return len(self._turns)

    def use(self, policy: str, version: int) -> int:
        """Return the pool of turns that some weights answer; an episode that may ask them keeps it."""
        key = (policy, version)
        number = self._numbers.get(key)
        if number is None:
            if None not in self._turns:
                self._turns.append(None)
                self._users.append(0)
                self._taken = np.hstack([self._taken, np.zeros((2, 1))])
                self.last = np.append(self.last, self._model.token)
            number = self._numbers[key] = self._turns.index(None)
            self._turns[number] = SimulatedTurn(policy, version, "", 0.0, 0, _nobody)
            self.last[number], self._seen = self._model.token * self._times(policy), -1
        self._users[number] += 1
        return number

    def release(self, number: int) -> None:
        """An episode that might have asked it has ended."""
        self._users[number] -= 1
        turn = self._turns[number]
        if not self._users[number] and turn is not None:
            del self._numbers[turn.policy, turn.pinned]
            self._turns[number], self._taken[:, number], self._seen = None, 0.0, -1

    def policy(self, number: int) -> str:
        """Return whose turns a pool's are; empty where there is no pool."""
        turn = self._turns[number]
        return "" if turn is None else turn.policy

    def enter(self, pool: int, cells: Numbers) -> int:
        """Take slots and cache for turns, in their order, as far as they go; return for how many."""
        engines = self._holding()[pool]
        share = np.array([_shared(own, engines) for own in self._engines])
        slots, cache = self._taken @ share
        each, model = len(engines) * self._model.replicas, self._model
        took: int = max(0, min(len(cells), floor(model.slots * each - slots)))
        if model.kv_tokens < inf:
            fits = int(np.searchsorted(np.cumsum(cells), model.kv_tokens * each - cache, side="right"))
            took = min(took, max(fits, int(slots == 0)))
        self._taken[:, pool] += took, cells[:took].sum()
        return took

    def slots(self) -> list[float]:
        """Return the slots that each pool has taken."""
        return [float(taken) for taken in self._taken[0]]

    def leave(self, pools: NDArray[np.int64], cells: Numbers) -> None:
        """Give back what turns took."""
        self._taken[0] -= np.bincount(pools, minlength=len(self))
        self._taken[1] -= np.bincount(pools, weights=cells, minlength=len(self))

    def prompts(self, pool: int, asked: Numbers, tokens: Numbers) -> Numbers:
        """Return when prompts are computed that are asked for one after the other."""
        engines, rate = self._holding()[pool], self._model.prefill / self._times(self.policy(pool))
        work = tokens / (rate * len(engines) * self._model.replicas)
        through = np.cumsum(work)
        free = np.maximum(asked, self._until.get(engines, 0.0)) - through + work
        done = through + np.maximum.accumulate(free)
        if len(done):
            self._until[engines] = float(done[-1])
        ready: Numbers = done - work + tokens / rate
        return ready

    def paces(self, at_work: Numbers, cells: Numbers) -> Numbers:
        """Return the seconds that a token takes in each pool when so many turns of each make tokens.

        `cells` is the cache that these have in use.
        """
        self.loads = self._spread(at_work)
        used = self._spread(cells) if self._model.cell else dict.fromkeys(self.loads, 0.0)
        work = {lease: (load, used[lease]) for lease, load in self.loads.items()}
        alike = {one: self.step_s(*one) for one in set(work.values())}
        steps = {lease: alike[one] for lease, one in work.items()}
        pace = {e: sum(steps[lease] for lease in e) / len(e) for e in set(self._engines) if e}
        self.last = np.array([pace.get(own, inf) * self._times(self.policy(n)) for n, own in enumerate(self._engines)])
        return self.last

    def _spread(self, amounts: Numbers) -> dict[int, float]:
        """Return how much of what each pool has lies on each engine."""
        of_all: dict[Engines, float] = {}
        for engines, amount in zip(self._holding(), amounts.tolist(), strict=True):
            of_all[engines] = of_all.get(engines, 0.0) + amount
        found: dict[int, float] = {}
        for engines, amount in of_all.items():
            for lease in engines:
                found[lease] = found.get(lease, 0.0) + amount / len(engines)
        return found

    def step_s(self, load: float, cells: float = 0.0) -> float:
        """Return how long a token takes where so many turns share an engine, on average, as evenly as they can.

        With less than one turn per engine, `cells` are those of the engines that have one.
        """
        model = self._model
        load, cells = load / model.replicas, cells / model.replicas
        met, cells = (1.0, cells / load if load else 0.0) if load <= 1.0 else (_met(load), cells)
        read = model.token * (1.0 + (met - 1.0) / model.batch) + model.cell * cells
        return max(read, model.compute * met)

    def _holding(self) -> list[Engines]:
        """Return the engines of each pool."""
        if self._seen != self._fleet.changes:
            self._engines = [() if turn is None else self._fleet.holding(turn) for turn in self._turns]
            self._seen = self._fleet.changes
            self._until = {engines: until for engines, until in self._until.items() if engines in self._engines}
        return self._engines


def _met(load: float) -> float:
    """Return how many turns one of them finds on its engine, itself counted."""
    least = floor(load)
    more = load - least
    return (least * least * (1.0 - more) + (least + 1) ** 2 * more) / load


def _shared(own: Engines, engines: Engines) -> float:
    """Return the part of what a pool has taken that lies on some engines."""
    if own == engines:
        return 1.0 if own else 0.0
    return len(set(own) & set(engines)) / len(own) if own else 0.0


def _nobody(turn: SimulatedTurn) -> None:
    """A pool's turns are never asked one by one."""
