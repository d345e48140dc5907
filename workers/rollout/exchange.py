"""Which turns travel together, and one request of them on its way to an engine.

Invariants. A turn is counted as sent to its engine from the moment it is routed to the moment it is settled or the
request ends, once. Turns are routed one by one, each seeing where those before it went: a hundred that are ready at
the same moment do not all meet the engine that was the emptiest.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flexmarl.algorithms.routing import Choice, ReplyLengths, Router, RouteRequest
from flexmarl.algorithms.routing.base import Reason
from workers.rollout.counters import ClientCounters
from workers.rollout.engines.wire import CompletionRequest, CompletionResponse, NotHeld
from workers.rollout.fleet import RoutedEngine, digest_of
from workers.rollout.turns import MAX_MOVES, TurnRefusedError, WaitingTurn


def spread(
    turns: list[WaitingTurn],
    engines: Sequence[RoutedEngine],
    router: Router[Any],
    lengths: ReplyLengths,
    counters: ClientCounters,
) -> list[tuple[RoutedEngine, list[WaitingTurn]]]:
    """Route turns of one shape, the longest first, and send them so; `counters` keep where each went and why."""
    for one in turns:
        request = one.request
        one.expected = lengths.left(request.role, len(one.so_far.token_ids), request.max_tokens, request.alike)
    if len(engines) == 1:
        return [(engines[0], turns)]
    loads = {e.route.incarnation: e.load(turns[0].request, lengths.usual) for e in engines}
    named = {engine.route.lease_id: engine.route.incarnation for engine in engines}
    batches: dict[str, list[WaitingTurn]] = {}
    for one in sorted(turns, key=lambda one: -one.expected):
        prompt = len(one.request.prompt) + len(one.so_far.token_ids)
        view = RouteRequest(prompt, one.expected, lengths.usual, one.request.prefixes)
        shown = tuple(load for load in loads.values() if load.engine != one.before) if one.before else ()
        first = loads.get(named.get(one.to, "")) if one.to else None
        if first is not None and first.engine != one.before:
            choice = Choice(first.engine, Reason.NAMED, tuple(loads.values()))
        else:
            choice = router.choose(view, shown or tuple(loads.values()))
        load = loads[choice.engine]
        loads[choice.engine] = replace(load, in_flight=load.in_flight + 1, tokens=load.tokens + one.expected)
        batches.setdefault(choice.engine, []).append(one)
        counters.chose(choice)
    return [(engine, batches[name]) for engine in engines if (name := engine.route.incarnation) in batches]


@dataclass(slots=True, eq=False)
class Exchange:
    engine: RoutedEngine
    turns: list[WaitingTurn]
    unanswered: int
    tokens: float
    """Expected of the unanswered."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Begins the ids of its requests at the engine."""
    work: "asyncio.Task[None] | None" = None
    quiet: int = 0
    """Looks at it since it was last heard."""
    left: bool = False
    dropped: set[int] = field(default_factory=set)
    """Turns that the engine was told to end, by index."""

    @classmethod
    def begin(cls, engine: RoutedEngine, turns: list[WaitingTurn]) -> "Exchange":
        """Count turns as sent."""
        tokens = sum(one.expected for one in turns)
        for one in turns:
            one.engine = engine.route.incarnation
        engine.in_flight += len(turns)
        engine.tokens += tokens
        return cls(engine, turns, len(turns), tokens)

    def end(self) -> None:
        """Count nothing of it any more."""
        self._answered(self.unanswered, self.tokens)

    def body(self) -> CompletionRequest:
        """Return the request as it is sent."""
        first = self.turns[0].request
        carried = any(one.so_far.token_ids for one in self.turns)
        return CompletionRequest(
            model=first.policy,
            prompt=[list(one.request.prompt) for one in self.turns],
            max_tokens=first.max_tokens,
            seeds=[one.request.seed for one in self.turns],
            request_ids=[f"{self.name}{index}" for index in range(len(self.turns))],
            version=first.pin.version,
            digest="" if first.follow else digest_of(self.engine.route, first),
            follow=first.follow,
            temperature=first.temperature,
            allowed_token_ids=list(first.allowed),
            stop_token_ids=list(first.stop),
            sampling=first.sampling,
            stream=True,
            progress=True,
            done=[one.so_far.done() for one in self.turns] if carried else [],
        )

    def accepted(self) -> None:
        """The engine took them: from now on they move instead of being refused."""
        for one in self.turns:
            one.taken = True

    def settle(self, reply: CompletionResponse) -> None:
        """Hand what arrived to the turns it belongs to."""
        now = time.monotonic()
        for choice in reply.choices:
            one = self.turns[choice.index]
            one.settle(choice, reply.incarnation, now)
            if choice.finish_reason:
                self._answered(1, one.expected)
        self.engine.queued = reply.load.waiting
        self.engine.queue_depth = max(0, reply.load.running + reply.load.waiting - self.engine.in_flight)

    def refuse(self, said: NotHeld) -> None:
        """End the turns that the engine says no engine can answer, of those that wait all when it names none."""
        named = {f"{self.name}{index}": one for index, one in enumerate(self.turns)}
        for one in [named[i] for i in said.request_ids if i in named] or self.turns:
            one.refuse(TurnRefusedError(said.code, f"{one.request.policy} v{one.request.pin.version}: {said.detail}"))

    @property
    def awaited(self) -> bool:
        """Whether anybody still waits for an answer."""
        return any(not one.future.done() for one in self.turns)

    def given_up(self) -> list[str]:
        """Return the ids of turns that nobody waits for any more, each once, and of those that are to stand still."""
        found = [i for i, one in enumerate(self.turns) if one.future.cancelled() and i not in self.dropped]
        self.dropped.update(found)
        recalled = [i for i, one in enumerate(self.turns) if one.recalled and not one.future.done()]
        return [f"{self.name}{index}" for index in found + recalled]

    @property
    def may_move(self) -> bool:
        """Whether every turn that waits could go on elsewhere and have a move left."""
        return all(one.moves < MAX_MOVES for one in self.turns if not one.future.done())

    def leave(self) -> None:
        """Hang up: the engine ends what it still makes."""
        self.left = True
        if self.work is not None:
            self.work.cancel()

    def _answered(self, turns: int, tokens: float) -> None:
        self.unanswered -= turns
        self.tokens -= tokens
        self.engine.in_flight -= turns
        self.engine.tokens -= tokens
