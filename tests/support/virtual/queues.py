"""Queues of turns at engines that hold some policies only, under a virtual clock: what the mover is good for.

Users ask one turn after the other, each from one list that all share; an engine answers as many turns at once as it has
slots, and a turn keeps its slot for its own time. A worker reports once a second. The core decides; loads and unloads
take their time, one after the other on an engine. What runs when its policy leaves goes on elsewhere with what it has,
where another engine holds the policy; else the unload waits for it.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flexmarl.contracts import commands as c
from flexmarl.contracts.specification import ExperimentSpec
from tests.support.placed_core import PlacedCore
from tests.support.virtual.clock import Clock

REPORT_S = 1.0


@dataclass
class Turn:
    policy: str
    seconds: float
    asked_at: float = 0.0
    user: int = -1
    left: float = 0.0
    """Seconds still to be made."""
    began: float = 0.0
    tries: int = 0


@dataclass
class Engine:
    lease: int
    slots: int
    holds: set[str] = field(default_factory=set)
    running: list[Turn] = field(default_factory=list)
    queue: deque[Turn] = field(default_factory=deque)
    orders: deque[tuple[int, c.LoadWeights | c.UnloadPolicy]] = field(default_factory=deque)
    busy: bool = False
    life: int = 0
    up: bool = True

    @property
    def depth(self) -> int:
        return len(self.running) + len(self.queue)


class Queues:
    """`turns` is what the users ask, in order; the world ends when all of it is answered."""

    def __init__(
        self,
        spec: ExperimentSpec,
        turns: Iterator[Turn],
        users: int,
        slots: int = 8,
        load_s: float = 0.3,
        fixed: Sequence[str] = (),
    ) -> None:
        """`fixed`: what each engine holds from the first to the last turn, and nobody decides anything."""
        self.clock, self.load_s = Clock(), load_s
        self.engines = {i: Engine(i, slots) for i in range(1, spec.resources.rollout_devices + 1)}
        self.turns, self.users = turns, users
        self.waiting: dict[str, deque[Turn]] = {name: deque() for name in spec.policies}
        """Turns that no engine holds the policy of."""
        self.answered: list[tuple[float, Turn]] = []
        self.asked = 0
        self.handed_over = 0
        self.done = False
        self.core = PlacedCore(spec, self._told)
        self._fixed = fixed
        self._last: dict[str, tuple[int, int]] = {}
        self._unchanged = 0

    def run(self, seconds: float = 10_000.0) -> "Queues":
        """Ask everything and let it be answered."""
        if self._fixed:
            for engine, policy in zip(self.engines.values(), self._fixed, strict=True):
                engine.holds.add(policy)
        else:
            self.core.start(self.clock.now)
            self.clock.after(REPORT_S, self._report)
        for user in range(self.users):
            self._ask(user)
        assert self.clock.until(lambda: self.done, seconds), f"{self.unanswered()} turns have no answer"
        return self

    def unanswered(self) -> int:
        return self.asked - len(self.answered)

    # -- users ------------------------------------------------------------------------------------------------------
    def _ask(self, user: int) -> None:
        turn = next(self.turns, None)
        if turn is None:
            self.done = self.unanswered() == 0
            return
        turn.asked_at, turn.user, turn.left = self.clock.now, user, turn.seconds
        self.asked += 1
        self._route(turn)

    def _route(self, turn: Turn) -> None:
        able = [engine for engine in self.engines.values() if engine.up and turn.policy in engine.holds]
        if not able:
            self.waiting[turn.policy].append(turn)
            return
        engine = min(able, key=lambda one: (one.depth, one.lease))
        engine.queue.append(turn)
        self._begin(engine)

    def _begin(self, engine: Engine) -> None:
        while engine.queue and len(engine.running) < engine.slots:
            turn = engine.queue.popleft()
            engine.running.append(turn)
            turn.began, turn.tries = self.clock.now, turn.tries + 1
            self.clock.after(turn.left, lambda turn=turn, number=turn.tries: self._answer(engine, turn, number))

    def _answer(self, engine: Engine, turn: Turn, number: int) -> None:
        if turn.tries != number or not any(one is turn for one in engine.running):
            return  # it went elsewhere
        engine.running.remove(turn)
        self.answered.append((self.clock.now, turn))
        self._begin(engine)
        self._work(engine)
        self._ask(turn.user)

    def _report(self) -> None:
        now = {name: (len(queue), 0) for name, queue in self.waiting.items()}
        for engine in self.engines.values():
            for turn in (*engine.running, *engine.queue):
                waiting, at = now[turn.policy]
                now[turn.policy] = waiting, at + 1
        self._unchanged += 1
        if now != self._last or self._unchanged >= 5:
            depths = {engine.lease: engine.depth for engine in self.engines.values() if engine.up}
            self.core.asked(now, self.clock.now, depths)
            self._last, self._unchanged = now, 0
        self.clock.after(REPORT_S, self._report)

    # -- engines ----------------------------------------------------------------------------------------------------
    def _told(self, no: int, order: c.LoadWeights | c.UnloadPolicy) -> None:
        engine = self.engines[order.lease_id]
        if isinstance(order, c.UnloadPolicy):
            # The registry says so first, and what waits there is handed back.
            engine.holds.discard(order.policy)
            back = [turn for turn in engine.queue if turn.policy == order.policy]
            engine.queue = deque(turn for turn in engine.queue if turn.policy != order.policy)
            if order.hand_over:
                back += self._interrupted(engine, order.policy)
            for turn in back:
                self._route(turn)
        engine.orders.append((no, order))
        self._work(engine)

    def _interrupted(self, engine: Engine, policy: str) -> list[Turn]:
        """Take what runs of a policy from an engine, with what is made of it."""
        taken = [turn for turn in engine.running if turn.policy == policy]
        engine.running = [turn for turn in engine.running if turn.policy != policy]
        for turn in taken:
            turn.left -= self.clock.now - turn.began
        self.handed_over += len(taken)
        self._begin(engine)
        return taken

    def _work(self, engine: Engine) -> None:
        """Carry out what an engine was told, one after the other."""
        if engine.busy or not engine.orders or not engine.up:
            return
        no, order = engine.orders[0]
        if isinstance(order, c.UnloadPolicy):
            if any(turn.policy == order.policy for turn in engine.running):
                return
            engine.orders.popleft()
            engine.holds.discard(order.policy)  # a load that nobody wanted any more may have ended meanwhile
            self.core.unloaded(no, order, 0.0, self.clock.now)
            self._work(engine)
            return
        engine.busy = True
        self.clock.after(self.load_s, lambda life=engine.life: self._loaded(engine, no, order, life))

    def _loaded(self, engine: Engine, no: int, order: c.LoadWeights, life: int) -> None:
        if engine.life != life:
            return
        engine.busy = False
        engine.orders.popleft()
        engine.holds.add(order.policy)
        places = self.core.core.plan.engines.places
        assert places is None or len(engine.holds) <= places, "an engine holds more than it can"
        self.core.loaded(no, order, self.load_s, self.clock.now)
        waiting, self.waiting[order.policy] = self.waiting[order.policy], deque()
        for turn in waiting:
            self._route(turn)
        self._work(engine)

    def kill(self, lease: int, back_s: float = 2.0) -> None:
        """An engine dies and comes back; what it had to do is asked again elsewhere."""
        engine = self.engines[lease]
        if not engine.up:
            return
        lost = [*engine.running, *engine.queue]
        engine.life, engine.up, engine.busy = engine.life + 1, False, False
        engine.holds.clear()
        engine.orders.clear()
        engine.running, engine.queue = [], deque()
        self.core.lost(lease, self.clock.now)
        for turn in lost:
            self._route(turn)

        def back() -> None:
            engine.up = True
            self.core.ready(lease, self.clock.now)

        self.clock.after(back_s, back)


def drawn(
    policies: tuple[str, ...],
    shares: tuple[float, ...],
    turns: int,
    seed: int,
    drift_every: int = 0,
    mean_s: float = 1.0,
) -> Iterator[Turn]:
    """Draw turns by shares with log-normal times; with a drift the hot policy changes every so many turns."""
    dice = random.Random(seed)
    sigma = 0.8
    for number in range(turns):
        by = number // drift_every if drift_every else 0
        turned = shares[-(by % len(shares)) :] + shares[: -(by % len(shares))] if by % len(shares) else shares
        policy = dice.choices(policies, turned)[0]
        yield Turn(policy, mean_s * dice.lognormvariate(-sigma * sigma / 2, sigma))
