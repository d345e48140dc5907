"""The engines of a run as this process knows them: what each holds, how busy it is, which ones to leave alone for now.

Invariants. The registry is the truth about who lives and holds what; an engine's own 409 corrects it. An engine that
failed is left alone for a while where another one may answer, and never where it is the only one: nobody waits for
weights that are there. What was sent and not answered is counted here once, by whoever sent it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from flexmarl.algorithms.routing import EngineLoad
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from workers.rollout.demand import AtEngines
from workers.rollout.turns import TurnRequest


@dataclass(slots=True)
class RoutedEngine:
    route: EngineRoute
    queue_depth: int = 0
    """As the engine returned it with its last reply, less what this process has sent."""
    queued: int = 0
    """Turns that waited there, as it returned with its last reply."""
    in_flight: int = 0
    """Turns this process has sent and not got back."""
    tokens: float = 0.0
    """Expected of these."""
    alone_until: float = 0.0
    """Monotonic seconds."""

    def load(self, request: TurnRequest, usual: float) -> EngineLoad:
        """Return it as a router sees it."""
        newest = self.route.holds.get(request.policy)
        return EngineLoad(
            self.route.incarnation,
            waiting=self.queue_depth,
            in_flight=self.in_flight,
            tokens=self.tokens + self.queue_depth * usual,
            hardware=self.route.hardware,
            newest=newest is not None and newest is answering(self.route, request),
        )


class Fleet:
    """`routes` re-reads the registry."""

    def __init__(self, routes: Callable[[], Awaitable[list[EngineRoute]]]) -> None:
        self._routes = routes
        self._engines: dict[str, RoutedEngine] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self.read_at = 0.0

    @property
    def known(self) -> bool:
        """Whether there are any engines."""
        return bool(self._engines)

    def __getitem__(self, incarnation: str) -> RoutedEngine:
        return self._engines[incarnation]

    def holding(self, request: TurnRequest) -> list[RoutedEngine]:
        """Return who may answer a turn; those left alone only when there is nobody else."""
        held = [engine for engine in self._engines.values() if answering(engine.route, request) is not None]
        if len(held) < 2:
            return held
        now = time.monotonic()
        return [engine for engine in held if engine.alone_until <= now] or held

    def at_engines(self, tokens: Mapping[str, int]) -> AtEngines:
        """Return what each engine has, by lease, as its last reply and what was sent since say.

        `tokens` of this process's turns are counted by incarnation.
        """
        known = {engine.route.lease_id: engine for engine in self._engines.values()}
        return AtEngines(
            turns={lease: engine.queue_depth + engine.in_flight for lease, engine in known.items()},
            queued={lease: engine.queued for lease, engine in known.items() if engine.queued},
            tokens={
                lease: tokens[name] for lease, engine in known.items() if (name := engine.route.incarnation) in tokens
            },
        )

    def newest(self) -> dict[str, int]:
        """Return the newest version of each policy that an engine has."""
        found: dict[str, int] = {}
        for engine in self._engines.values():
            for policy, pin in engine.route.holds.items():
                found[policy] = max(found.get(policy, pin.version), pin.version)
        return found

    def others(self, engine: RoutedEngine, request: TurnRequest) -> bool:
        """Whether another engine than this one would answer now."""
        now = time.monotonic()
        return any(one is not engine and one.alone_until <= now for one in self.holding(request))

    async def refresh(self) -> None:
        """Re-read the registry; concurrent callers share one read."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._read())
        await self._refreshing

    async def _read(self) -> None:
        read_at = time.monotonic()
        routes = await self._routes()
        known, self._engines, self.read_at = self._engines, {}, read_at
        for route in routes:
            engine = known.get(route.incarnation) or RoutedEngine(route)
            engine.route = route
            self._engines[route.incarnation] = engine


def leave_alone(engine: RoutedEngine, seconds: float) -> None:
    """Ask this engine nothing for a while, where another one may answer."""
    engine.alone_until = max(engine.alone_until, time.monotonic() + seconds)


def answering(route: EngineRoute, request: TurnRequest) -> PolicyPin | None:
    """Return which of the weights an engine holds would answer a turn, None when none may."""
    newest, former = route.holds.get(request.policy), route.former.get(request.policy)
    if request.follow:
        return newest if newest is not None and newest.version >= request.pin.version else None
    for held in (newest, former):
        # A pin without a digest named its version before it was committed; a number is never given twice.
        if held is not None and held.version == request.pin.version and request.pin.digest in ("", held.digest):
            return held
    return None


def digest_of(route: EngineRoute, request: TurnRequest) -> str:
    """Return the digest by which an engine is asked for a turn's weights."""
    held = answering(route, request)
    return request.pin.digest if held is None else held.digest
