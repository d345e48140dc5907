"""A model of an engine of which whole steps can be told, as those of a machine that was measured.

Requests that have come begin together with the next step, and what there is to compute of them is a part of it. Each
set of weights that is asked for makes a step of its own, one after the other, and with all of them each reply has one
token more. What comes meanwhile waits. The plain model of an engine lets all that flow, which is alike for long replies
of one policy in large batches, and makes too little work of short ones and of several policies.

Invariants as of the plain model; a reply has whole tokens.
"""

from collections import Counter
from heapq import heappush
from math import ceil, floor, inf

from flexmarl.contracts.hardware import Hardware
from flexmarl.simulator.devices.batch import DecodeBatch, Rates
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.devices.trace import Trace
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.scenarios.scenario import EngineModel

ROUNDING = 1e-6
"""Share of a step that counts as rounding."""


class Steps(DecodeBatch):
    """Replies that make a token each per step; they join only where a step begins."""

    def __init__(self, rates: Rates) -> None:
        super().__init__(rates)
        self.awaited = False
        """Someone waits to join: the end of this step is what comes next."""
        self._each = 0.0
        """What a step takes behind the one under way."""
        self._left = 0.0
        """What is left of that."""

    def advance(self, now: float) -> None:
        passed, each = now - self._at, self._each
        self._at = now
        if not self._replies or passed <= 0.0:
            return
        if self._left - passed > ROUNDING * each:
            self._left -= passed
            return
        over = max(0.0, passed - self._left)
        more = floor(over / each + ROUNDING)
        self._left = each - max(0.0, over - more * each)
        self._steps += 1 + more
        self.tokens += (1 + more) * len(self._replies)

    def enter(self, turn: SimulatedTurn) -> None:
        """Join; `begin` follows when all have."""
        self._entered += 1
        turn.began = self._steps - int(turn.made)
        heappush(self._replies, (turn.began + turn.reply, self._entered, turn))
        self._older += turn.prompt + turn.made

    def begin(self, prompts: float) -> None:
        """Begin with a step that computes prompts as well, which take so long."""
        self.awaited = False
        self.changed()
        self._left = self._each + prompts
        self._look()

    def held(self) -> float:
        return sum(turn.prompt + self.made(turn) for turn in self.turns())

    def made(self, turn: SimulatedTurn) -> float:
        return float(min(turn.reply, self._steps - turn.began))

    def ended(self) -> list[SimulatedTurn]:
        """Take out the replies that have all their tokens."""
        found, replies, steps = [], self._replies, self._steps
        if replies and replies[0][0] <= steps:
            found = [entry[2] for entry in sorted(replies) if entry[0] <= steps]
            self.leave(found)
        return found

    def slow(self, rates: Rates) -> None:
        """Take as long as these say from now on, for the rest of the step as well."""
        self._left *= rates.token / self._rates.token
        super().slow(rates)

    def changed(self) -> None:
        """Look anew how long steps take; the one under way goes on."""
        sizes = Counter((turn.policy, turn.version, turn.scale) for turn in self.turns())
        rates = self._rates
        self._each = rates.token * sum(
            scale * (1.0 + (count - 1.0) / rates.batch) for (_, _, scale), count in sizes.items()
        )
        self._look()

    def _look(self) -> None:
        """Find when the next reply ends, or whoever waits may join."""
        if not self._replies:
            self.end = inf
            return
        steps = 1 if self.awaited else max(1, ceil(self._replies[0][0] - self._steps))
        self.end = self._at + self._left + (steps - 1) * self._each


class SteppedEngine(SimulatedEngine):
    _batch: Steps

    def __init__(
        self, clock: Clock, trace: Trace, model: EngineModel, lease_id: int, hardware: Hardware = Hardware.ANY
    ) -> None:
        super().__init__(clock, trace, model, lease_id, hardware)
        self._batch = Steps(self._rates)

    def _prompt(self, turn: SimulatedTurn) -> None:
        """Let a request wait for the next step; an idle engine begins one when all have come that come now."""
        turn.phase = "prompt"
        self._prompts.turns[id(turn)] = turn
        if not len(self._batch):
            self._clock.after(0.0, self._start)
        elif not self._batch.awaited:
            self._batch.advance(self._clock.now)
            self._batch.awaited = True
            self._batch.changed()
            self._look()

    def _start(self) -> None:
        if not len(self._batch):
            self._join()
            self._look()

    def _join(self) -> None:
        """Begin a step with all that wait for it."""
        batch, waiting, prompts = self._batch, self._prompts.turns, 0.0
        batch.advance(self._clock.now)
        for turn in waiting.values():
            prompts += (self.held.fresh(turn) + turn.made) / self._rates.prefill * turn.scale * self.pace
            turn.phase = "reply"
            batch.enter(turn)
        waiting.clear()
        batch.begin(prompts)

    def _called(self, when: float) -> None:
        batch = self._batch
        if when != batch.called:
            return  # the clock was asked for an earlier moment since
        batch.called = inf
        if batch.end > self._clock.now:
            self._look()  # steps take longer than they seemed to
            return
        batch.advance(self._clock.now)
        ended = batch.ended()
        self._settle(ended)
        self._admit()
        self._join()
        self._look()
        for turn in ended:
            turn.done(turn)
