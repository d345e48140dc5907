"""Episodes that are played as a whole: their turns flow together, and what is told is when an episode ends.

Everything about groups is as with turns. Invariants: an episode's row is given back once, when it ends or is abandoned;
while one plays that some engine can answer there is a next tick.
"""

from typing import Any

import numpy as np

from flexmarl.contracts import events as e
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.engine_pools import Pools
from flexmarl.simulator.rollout import facts
from flexmarl.simulator.rollout.flow import TurnFlow
from flexmarl.simulator.rollout.groups import Episode
from flexmarl.simulator.rollout.playing import RolloutModel, Told
from flexmarl.simulator.scenarios.draws import Draws, Sheet, Sheets
from flexmarl.simulator.scenarios.scenario import Scenario, Workload


class EpisodePlaying(RolloutModel):
    def __init__(self, clock: Clock, host: Clock, scenario: Scenario, told: Told) -> None:
        super().__init__(clock, host, scenario, told)
        stages, model = scenario.workload.stages, scenario.machine.wide_engine
        self._roles = list(dict.fromkeys(role for stage in stages for role in stage))
        self._names = list(dict.fromkeys(scenario.spec.policy_of(role) for role in self._roles))
        asked = np.full((len(stages), max(len(stage) for stage in stages)), -1)
        for number, stage in enumerate(stages):
            asked[number, : len(stage)] = [self._names.index(scenario.spec.policy_of(role)) for role in stage]
        self._pools = Pools(self.engines, model, scenario.machine.answers)
        self._flow = TurnFlow(asked, len(self._names), self._pools, model.prefill)
        self._rows: dict[int, Episode] = {}
        self._row_of: dict[int, tuple[int, list[int]]] = {}
        """Episode -> its row and its pools."""
        self._replicas = model.replicas
        self._tick_s, self._since, self._ticks = scenario.tick, 0.0, False

    def weights(self, policy: str) -> None:
        """Go on, where all had to wait for weights; who holds what is looked at in each tick."""
        if self._rows:
            self._go_on()

    def demand(self) -> dict[str, e.RequestedTurns]:
        """Count the turns of each policy that no engine and that an engine has."""
        found: dict[str, list[int]] = {}
        for number, (held, waiting) in enumerate(zip(*self._flow.counts(), strict=True)):
            counts = found.setdefault(self._pools.policy(number), [0, 0])
            counts[0] += int(held)
            counts[1] += int(waiting)
        found.pop("", None)
        return {n: e.RequestedTurns(waiting=found[n][1], in_flight=found[n][0]) for n in sorted(found) if any(found[n])}

    @property
    def changes(self) -> int:
        """Count the turns that were asked, the turns that were answered and the waits that were over so far."""
        return self._flow.changes

    def made_of(self, episode: Episode) -> float:
        """Return the reply tokens that an episode has, as of the last tick."""
        under_way = self._row_of.get(id(episode))
        return episode.made() if under_way is None else self._flow.made(under_way[0])

    def taken(self) -> list[tuple[str, float, float]]:
        """Return for each pool whose it is, the slots that count as taken, and the turns that have one."""
        held, _ = self._flow.counts()
        slots = self._pools.slots()
        return [(self._pools.policy(n), slots[n], held[n]) for n in range(len(self._pools))]

    def _drawn(self, workload: Workload, roles: dict[str, int], seed: int) -> Draws[Any]:
        return Sheets(workload, roles, seed)

    def _start(self, episode: Episode) -> None:
        now, command, sheet = self._clock.now, episode.group.command, episode.script
        assert isinstance(sheet, Sheet)
        self._go_on()
        pools = [self._pools.use(name, command.pins[name].version) for name in self._names]
        row = self._flow.begin(sheet, pools, now)
        self._rows[row], self._row_of[id(episode)] = episode, (row, pools)

    def _stop(self, episode: Episode) -> None:
        if not episode.played:
            row, _ = self._row_of[id(episode)]
            episode.tokens = self._flow.made(row)
            self._flow.drop(row)
            self._give_back(episode)

    def _give_back(self, episode: Episode) -> None:
        """Forget the row and the pools of an episode that takes nothing of them any more."""
        row, pools = self._row_of.pop(id(episode))
        del self._rows[row]
        for pool in pools:
            self._pools.release(pool)

    def _tick(self) -> None:
        before, now, self._ticks = self._flow.tokens, self._clock.now, False
        ended = self._flow.advance(self._since, now)
        self._note(self._flow.tokens - before)
        for episode, when in [(self._rows[row], when) for row, when in ended]:
            if episode.over:
                continue  # another one of its group came first and it was abandoned
            sheet = episode.script
            assert isinstance(sheet, Sheet)
            episode.rows = [facts.sample(role, 0, made) for role, made in zip(self._roles, sheet.tokens, strict=True)]
            self._flow.end(self._row_of[id(episode)][0])
            self._give_back(episode)
            self._played(episode, when)
        if self._rows and (self._flow.tokens > before or not self._flow.stands()):
            self._go_on()

    def _go_on(self) -> None:
        """See to it that there is a next tick."""
        if not self._ticks:
            self._ticks, self._since = True, self._clock.now
            self._clock.after(self._tick_s, self._tick)

    def _note(self, tokens: float) -> None:
        """Tell the engines what they have done: as many of them as there is work for."""
        loads = self._pools.loads
        work = sum(min(load, self._replicas) for load in loads.values()) / self._replicas
        busy, each = max(1, round(work)) if work else 0, tokens / max(1, len(self.engines.values()))
        for number, (lease, engine) in enumerate(self.engines.items()):
            engine.flow(number < busy, each, round(loads.get(lease, 0.0)))
