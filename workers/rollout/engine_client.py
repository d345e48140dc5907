"""Turns to engines: concurrent turns of one policy version travel as one request.

Invariants. A turn names (policy, version, digest); a reply is accepted only from an engine that wholly held it, because
an engine that does not answers 409. A turn that an engine lost (connection, restart, weights not loaded yet) is asked
again, anywhere, until its deadline: asking again is harmless, since the draw of a token depends on (seed, position)
alone and no environment has moved. Nobody here decides which engine is best; `algorithms.routing` does.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import msgspec

from flexmarl.algorithms.routing import EngineLoad, Router
from flexmarl.contracts.plane_tokens import TTL_S
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.engines import EngineRoute
from workers.rollout.demand import Demand
from workers.rollout.engines.wire import Choice, CompletionRequest, CompletionResponse

RETRY_FIRST_S = 0.02
RETRY_LAST_S = 0.5
LOOK_EVERY_S = 0.05
"""Pause of a turn that waits for weights to come: nothing is broken, they are being made."""
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0)
MAX_PROMPTS = 256
"""Prompts per request: enough to fill any slot pool, small enough to parse without a pause."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Everything a reply depends on. Requests that agree on all but prompt and seed share one HTTP request."""

    policy: str
    pin: PolicyPin
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    temperature: float
    allowed: tuple[int, ...]
    stop: tuple[int, ...]
    follow: str = ""
    """Empty: exactly the pinned weights. Else the pinned version is the oldest allowed, see `CompletionRequest`."""

    def shape(self) -> tuple[object, ...]:
        return (self.policy, self.pin, self.max_tokens, self.temperature, self.allowed, self.stop, self.follow)


@dataclass(frozen=True, slots=True)
class TurnReply:
    choice: Choice
    incarnation: str
    latency_ms: float


class TurnTimeoutError(TimeoutError):
    """No engine answered a turn before its deadline."""


class WeightsTimeoutError(TimeoutError):
    """Weights that were certain when a turn was asked for did not come in time."""


@dataclass(slots=True)
class _Waiting:
    request: TurnRequest
    future: "asyncio.Future[TurnReply]"
    asked_at: float


@dataclass(slots=True)
class _Engine:
    route: EngineRoute
    queue_depth: int = 0
    """As the engine returned it with its last reply."""
    in_flight: int = 0
    """Turns this process has sent and not got back."""


@dataclass(slots=True)
class ClientCounters:
    turns: int = 0
    requests: int = 0
    retries: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    demand: Demand = field(default_factory=Demand)


class EngineClient:
    """Sends the turns of one run. One instance per run and event loop; `routes` re-reads the engine registry."""

    def __init__(self, routes: Callable[[], Awaitable[list[EngineRoute]]], router: Router) -> None:
        self._routes = routes
        self._router = router
        self._session: aiohttp.ClientSession | None = None
        self._engines: dict[str, _Engine] = {}
        self._pending: dict[tuple[object, ...], list[_Waiting]] = {}
        self._flushing = False
        self._read_at = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(CompletionResponse)
        self.counters = ClientCounters()

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        """Answer one turn. Raises TurnTimeoutError when no engine did before `deadline` (monotonic seconds)."""
        with self.counters.demand.asking(request.policy):
            return await self._answered(request, deadline)

    async def _answered(self, request: TurnRequest, deadline: float) -> TurnReply:
        pause = RETRY_FIRST_S
        asked_at = time.monotonic()
        while True:
            future: asyncio.Future[TurnReply] = asyncio.get_running_loop().create_future()
            self._enqueue(_Waiting(request, future, asked_at))
            try:
                async with asyncio.timeout_at(deadline):
                    return await future
            except TimeoutError:
                raise TurnTimeoutError(
                    f"no engine answered {request.policy} v{request.pin.version} within {deadline - asked_at:.0f} s"
                ) from None
            except _TryElsewhereError as lost:
                self.counters.retries += 1
                self.counters.refused[lost.code] += 1
            if time.monotonic() + pause >= deadline:
                raise TurnTimeoutError(f"no engine holds {request.policy} v{request.pin.version}")
            await asyncio.sleep(pause)
            pause = min(RETRY_LAST_S, pause * 1.6)
            await self._refresh()

    async def until_held(self, request: TurnRequest, at_most_s: float) -> float:
        """Wait until weights that are certain and not committed yet are served; returns the seconds it took.

        Raises WeightsTimeoutError after `at_most_s`; whoever withdraws the command ends the wait before.
        """
        began = time.monotonic()
        with self.counters.demand.asking(request.policy):
            while not request.pin.digest and self._pick(request) is None:
                if time.monotonic() - began >= at_most_s:
                    what = f"version {request.pin.version} of {request.policy}"
                    raise WeightsTimeoutError(f"no engine served {what} within {at_most_s:g} s")
                await asyncio.sleep(LOOK_EVERY_S)
                await self._refresh()
        return time.monotonic() - began

    def depths(self) -> dict[int, int]:
        """Return each engine's turns, as its last reply and what was sent since say."""
        return {engine.route.lease_id: engine.queue_depth + engine.in_flight for engine in self._engines.values()}

    async def close(self) -> None:
        """Drop the connections; turns still waiting fail with the loop that waits for them."""
        for task in list(self._sending):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()

    def _enqueue(self, waiting: _Waiting) -> None:
        """Collect turns until everything that is ready to ask in this pass of the event loop has asked."""
        self._pending.setdefault(waiting.request.shape(), []).append(waiting)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        pending, self._pending = self._pending, {}
        for turns in pending.values():
            for i in range(0, len(turns), MAX_PROMPTS):
                task = asyncio.ensure_future(self._send(turns[i : i + MAX_PROMPTS]))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(self, turns: list[_Waiting]) -> None:
        first = turns[0].request
        if not self._engines:
            await self._refresh()
        elif time.monotonic() - self._read_at > TTL_S / 2:
            await self._renew_tokens()
        engine = self._pick(first)
        if engine is None:
            _give_back(turns, "not_held")
            return
        engine.in_flight += len(turns)
        self.counters.demand.sent(first.policy, len(turns))
        self.counters.requests += 1
        self.counters.turns += len(turns)
        try:
            await self._exchange(engine, turns)
        except _TryElsewhereError as refused:
            self._engines.pop(engine.route.incarnation, None)
            _give_back(turns, refused.code)
        except (aiohttp.ClientError, TimeoutError, ConnectionError, msgspec.DecodeError):
            self._engines.pop(engine.route.incarnation, None)
            _give_back(turns, "engine_unreachable")
        finally:
            engine.in_flight -= len(turns)
            self.counters.demand.sent(first.policy, -len(turns))

    def _pick(self, request: TurnRequest) -> _Engine | None:
        holding = [e for e in self._engines.values() if _answering(e.route, request) is not None]
        if not holding:
            return None
        loads = [EngineLoad(e.route.incarnation, waiting=e.queue_depth, in_flight=e.in_flight) for e in holding]
        return self._engines[self._router(loads).engine]

    async def _exchange(self, engine: _Engine, turns: list[_Waiting]) -> None:
        """Send one request and settle each turn as soon as its choice arrives."""
        first = turns[0].request
        body = CompletionRequest(
            model=first.policy,
            prompt=[list(t.request.prompt) for t in turns],
            max_tokens=first.max_tokens,
            seeds=[t.request.seed for t in turns],
            version=first.pin.version,
            digest="" if first.follow else _digest(engine.route, first),
            follow=first.follow,
            temperature=first.temperature,
            allowed_token_ids=list(first.allowed),
            stop_token_ids=list(first.stop),
            stream=True,
        )
        headers = {"Authorization": f"Bearer {engine.route.token}", "Content-Type": "application/json"}
        url = f"{engine.route.endpoint}/v1/completions"
        async with self._open().post(url, data=self._encoder.encode(body), headers=headers) as response:
            if response.status != 200:
                raise _TryElsewhereError("not_held" if response.status == 409 else f"http_{response.status}")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    self._settle(engine, turns, self._decoder.decode(line[6:]))
        if any(not t.future.done() for t in turns):
            raise _TryElsewhereError("cut_off")

    def _settle(self, engine: _Engine, turns: list[_Waiting], reply: CompletionResponse) -> None:
        engine.queue_depth = max(0, reply.load.running + reply.load.waiting - engine.in_flight)
        now = time.monotonic()
        for choice in reply.choices:
            waiting = turns[choice.index]
            if waiting.future.done():
                continue
            if choice.finish_reason == "abort":
                waiting.future.set_exception(_TryElsewhereError("aborted"))
            else:
                waiting.future.set_result(TurnReply(choice, reply.incarnation, (now - waiting.asked_at) * 1e3))

    async def _refresh(self) -> None:
        """Re-read the registry; concurrent callers share one read."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._read_registry())
        await self._refreshing

    async def _renew_tokens(self) -> None:
        """Ask for new tokens at half their time; those at hand are good for the other half."""
        try:
            await self._refresh()
        except Exception:  # the registry is out of reach for now, and what is known still answers
            self.counters.refused["registry_unreachable"] += 1

    async def _read_registry(self) -> None:
        read_at = time.monotonic()
        routes = await self._routes()
        known, self._engines, self._read_at = self._engines, {}, read_at
        for route in routes:
            engine = known.get(route.incarnation, _Engine(route))
            engine.route = route
            self._engines[route.incarnation] = engine

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, timeout=REQUEST_TIMEOUT, read_bufsize=2**20)
        return self._session


def _answering(route: EngineRoute, request: TurnRequest) -> PolicyPin | None:
    """Return which of the weights an engine holds would answer a turn, None when none may."""
    newest, former = route.holds.get(request.policy), route.former.get(request.policy)
    if request.follow:
        return newest if newest is not None and newest.version >= request.pin.version else None
    for held in (newest, former):
        # A pin without a digest named its version before it was committed; a number is never given twice.
        if held is not None and held.version == request.pin.version and request.pin.digest in ("", held.digest):
            return held
    return None


def _digest(route: EngineRoute, request: TurnRequest) -> str:
    held = _answering(route, request)
    return request.pin.digest if held is None else held.digest


class _TryElsewhereError(Exception):
    """An engine could not answer; `code` says why and is counted."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def _give_back(turns: list[_Waiting], code: str) -> None:
    for waiting in turns:
        if not waiting.future.done():
            waiting.future.set_exception(_TryElsewhereError(code))
