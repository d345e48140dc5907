"""Turns to engines: concurrent turns of one policy version that go to one engine travel as one request.

Invariants. A turn names (policy, version, digest); a reply is accepted only from an engine that wholly held it, because
an engine that does not answers 409. A turn that an engine lost (connection, restart, abort, silence, weights not loaded
yet) goes on anywhere, with the tokens it has, until its deadline: asking again is harmless, since the draw of a token
depends on (seed, position) alone and no environment has moved. Nobody here decides which engine is best;
`algorithms.routing` does. An engine that is silent while another one could answer is left; it stays with its node to
say whether it lives.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import aiohttp
import msgspec

from flexmarl.algorithms.routing import ReplyLengths, Router
from flexmarl.contracts.plane_tokens import TTL_S
from flexmarl.store.control.engines import EngineRoute
from workers.rollout.counters import ClientCounters
from workers.rollout.demand import AtEngines
from workers.rollout.engines.wire import PROGRESS_S, AbortRequest, CompletionResponse, NotHeld
from workers.rollout.exchange import Exchange, spread
from workers.rollout.fleet import Fleet, leave_alone
from workers.rollout.open_turns import Followed
from workers.rollout.turns import (
    MAX_MOVES,
    SoFar,
    TooManyMovesError,
    TryElsewhereError,
    TurnRefusedError,
    TurnReply,
    TurnRequest,
    TurnTimeoutError,
    WaitingTurn,
    WeightsTimeoutError,
)

RETRY_FIRST_S = 0.02
RETRY_LAST_S = 0.5
LOOK_EVERY_S = 0.05
"""Pause of a turn that waits for weights to come: nothing is broken, they are being made."""
FRESH_S = 0.5
"""Age of what is known of the engines at which it is read again, where somebody asks what is newest."""
SILENT_LOOKS = 5
"""Looks, `PROGRESS_S` apart, at a stream that says nothing before its engine is left: about five seconds."""
FAILED_ALONE_S = 1.0
SILENT_ALONE_S = 10.0
"""By then its node has found out."""
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0)
MAX_PROMPTS = 256
"""Prompts per request: enough to fill any slot pool, small enough to parse without a pause."""


class EngineClient:
    """Sends the turns of one run. One instance per run and event loop; `routes` re-reads the engine registry.

    Without `resumes` a turn that moves begins anew: engines of an ordered run make each reply from its first token.
    """

    def __init__(
        self, routes: Callable[[], Awaitable[list[EngineRoute]]], router: Router[Any], resumes: bool = True
    ) -> None:
        self._fleet = Fleet(routes)
        self._router = router
        self._resumes = resumes
        self._lengths = ReplyLengths()
        self._session: aiohttp.ClientSession | None = None
        self._pending: dict[tuple[object, ...], list[WaitingTurn]] = {}
        self._open: set[Exchange] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(CompletionResponse)
        self.counters = ClientCounters()

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        """Answer one turn.

        Raises TurnTimeoutError when no engine did before `deadline` (monotonic seconds), and TurnRefusedError when
        none ever could.
        """
        future: asyncio.Future[TurnReply] = asyncio.get_running_loop().create_future()
        begun = SoFar.of(request.begun)
        first = WaitingTurn(request, future, time.monotonic(), begun, had=len(begun.token_ids), to=request.engine)
        with self.counters.demand.asking(request.policy), self.counters.open.following(first) as followed:
            return await self._answered(followed, deadline)

    async def _answered(self, followed: Followed, deadline: float) -> TurnReply:
        one, pause = followed.latest, RETRY_FIRST_S
        request = one.request
        while True:
            deadline += await self._stood(one)
            self._enqueue(one)
            try:
                with request.hold.out(one, self._call_back):
                    async with asyncio.timeout_at(deadline):
                        reply = await one.future
                    self._lengths.note(request.role, len(reply.choice.token_ids), request.alike)
                    return reply
            except TimeoutError:
                waited = deadline - one.asked_at
                raise TurnTimeoutError(
                    f"no engine answered {request.policy} v{request.pin.version} within {waited:.0f} s"
                ) from None
            except TryElsewhereError as lost:
                why = lost.code
                if not one.recalled:
                    self._count(one, why)
            if reason := one.so_far.ended(request):
                took = (time.monotonic() - one.asked_at) * 1e3
                return TurnReply(one.so_far.choice(reason), one.engine, took, one.moves)
            recalled, one = one.recalled, one.again(self._resumes)
            followed.latest = one
            if recalled:
                continue
            if one.moves > MAX_MOVES:
                raise TooManyMovesError(
                    f"{one.moves} engines accepted it one after another and did not finish it; the last error: {why}"
                )
            if time.monotonic() + pause >= deadline:
                raise TurnTimeoutError(f"no engine answered {request.policy} v{request.pin.version}: {why}")
            await asyncio.sleep(pause)
            pause = min(RETRY_LAST_S, pause * 1.6)
            await self._fleet.refresh()

    async def _stood(self, one: WaitingTurn) -> float:
        """Wait while a turn is to stand still; returns the seconds, which are none of its time."""
        if not one.request.hold.held:
            return 0.0
        with self.counters.demand.resting(one.request.policy):
            stood_s = await one.request.hold.over()
        one.asked_at += stood_s
        return stood_s

    def _call_back(self) -> None:
        """Tell engines what they are to give back; the watch tells them again, should they not have had it yet."""
        for exchange in list(self._open):
            if ids := exchange.given_up():
                self._start(self._abort(exchange, ids))

    async def until_held(self, request: TurnRequest, at_most_s: float) -> float:
        """Wait until weights that are certain and not committed yet are served; returns the seconds it took.

        Raises WeightsTimeoutError after `at_most_s`; whoever withdraws the command ends the wait before.
        """
        began = time.monotonic()
        with self.counters.demand.asking(request.policy):
            while not request.pin.digest and not self._fleet.holding(request):
                if time.monotonic() - began >= at_most_s:
                    what = f"version {request.pin.version} of {request.policy}"
                    raise WeightsTimeoutError(f"no engine served {what} within {at_most_s:g} s")
                await asyncio.sleep(LOOK_EVERY_S)
                await self._fleet.refresh()
        return time.monotonic() - began

    async def newest(self) -> Mapping[str, int]:
        """Return the newest version of each policy that an engine has, by a registry read at most `FRESH_S` ago.

        While the registry is out of reach: by the last one that was read.
        """
        if time.monotonic() - self._fleet.read_at > FRESH_S:
            await self._refresh("registry_unreachable", [])
        return self._fleet.newest()

    def at_engines(self) -> AtEngines:
        """Return what each engine has, as its last reply and what was sent since say."""
        return self._fleet.at_engines(self.counters.open.tokens())

    async def close(self) -> None:
        """Drop the connections; turns still waiting fail with the loop that waits for them."""
        tasks = [*self._tasks, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()

    def _count(self, one: WaitingTurn, code: str) -> None:
        self.counters.retries += 1
        self.counters.refused[code] += 1
        if one.taken:
            self.counters.left[code, one.engine] += 1

    def _enqueue(self, waiting: WaitingTurn) -> None:
        """Collect turns until everything that is ready to ask in this pass of the event loop has asked."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.setdefault(waiting.request.shape(), []).append(waiting)

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        for turns in pending.values():
            self._start(self._send(turns))

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, turns: list[WaitingTurn]) -> None:
        """Choose an engine for each turn, and send it what it is to answer."""
        if not self._fleet.known:
            await self._refresh("registry_unreachable", turns)
        elif time.monotonic() - self._fleet.read_at > TTL_S / 2:
            # New tokens at half the time of the old ones, which are good for the other half.
            await self._refresh("registry_unreachable", [])
        held = self._fleet.holding(turns[0].request)
        if not held and self._fleet.read_at < max(one.asked_at for one in turns):
            # The first turn of new weights: what is known of the engines is older than the turn, and a look is quick.
            await self._refresh("registry_unreachable", [])
            held = self._fleet.holding(turns[0].request)
        _give_back([one for one in turns if one.recalled], "recalled")
        turns = [one for one in turns if not one.recalled]
        if not held or not turns:
            _give_back(turns, "not_held")
            return
        try:
            batches = spread(turns, held, self._router, self._lengths, self.counters)
        except Exception as error:  # a router may be somebody's plug-in: whatever it raises ends the turns it was for
            for one in turns:
                one.refuse(TurnRefusedError("router_failed", f"{type(error).__name__}: {error}"))
            return
        for engine, batch in batches:
            for i in range(0, len(batch), MAX_PROMPTS):
                exchange = Exchange.begin(engine, batch[i : i + MAX_PROMPTS])
                self._open.add(exchange)
                exchange.work = self._start(self._carry_out(exchange))
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    async def _refresh(self, code: str, turns: list[WaitingTurn]) -> None:
        """Re-read the registry; when it is out of reach, what is known still answers."""
        try:
            await self._fleet.refresh()
        except Exception:  # whatever keeps it away: a turn that needs it asks again itself and hears why
            self.counters.refused[code] += 1
            _give_back(turns, code)

    async def _carry_out(self, exchange: Exchange) -> None:
        policy, turns = exchange.turns[0].request.policy, len(exchange.turns)
        self.counters.requests += 1
        self.counters.turns += turns
        self.counters.demand.sent(policy, turns)
        try:
            await self._talk(exchange)
        except TryElsewhereError as refused:
            leave_alone(exchange.engine, FAILED_ALONE_S)
            _give_back(exchange.turns, refused.code)
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            leave_alone(exchange.engine, FAILED_ALONE_S)
            _give_back(exchange.turns, "engine_unreachable")
        except msgspec.DecodeError:
            # A number that is none is no number in JSON either: what a row must never hold ends here at the latest.
            leave_alone(exchange.engine, FAILED_ALONE_S)
            _give_back(exchange.turns, "malformed_answer")
        except asyncio.CancelledError:
            if not exchange.left:
                raise
            _give_back(exchange.turns, "silent")
        finally:
            exchange.end()
            self._open.discard(exchange)
            self.counters.demand.sent(policy, -turns)

    async def _talk(self, exchange: Exchange) -> None:
        """Send one request and settle each turn as soon as its choice arrives."""
        route = exchange.engine.route
        body = self._encoder.encode(exchange.body())
        async with self._http().post(
            f"{route.endpoint}/v1/completions", data=body, headers=_headers(route)
        ) as response:
            if response.status == 422:
                exchange.refuse(msgspec.json.decode(await response.read(), type=NotHeld))
                _give_back(exchange.turns, "refused_beside")
                return
            if response.status != 200:
                raise TryElsewhereError("not_held" if response.status == 409 else f"http_{response.status}")
            exchange.accepted()
            async for line in response.content:
                exchange.quiet = 0
                if line.startswith(b"data: {"):
                    exchange.settle(self._decoder.decode(line[6:]))
        if exchange.unanswered:
            raise TryElsewhereError("cut_off")

    async def _watch(self) -> None:
        """Leave engines that say nothing, and requests that nobody waits for any more."""
        while self._open:
            await asyncio.sleep(PROGRESS_S)
            for exchange in list(self._open):
                exchange.quiet += 1
                silent = exchange.quiet > SILENT_LOOKS and self._fleet.others(
                    exchange.engine, exchange.turns[0].request
                )
                if silent and exchange.may_move:
                    leave_alone(exchange.engine, SILENT_ALONE_S)
                    exchange.leave()
                elif not exchange.awaited:
                    exchange.leave()
                elif ids := exchange.given_up():
                    self._start(self._abort(exchange, ids))

    async def _abort(self, exchange: Exchange, ids: list[str]) -> None:
        """Tell an engine which replies of a request it need not finish; unheard it makes them in vain."""
        route, body = exchange.engine.route, self._encoder.encode(AbortRequest(ids))
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
            async with self._http().post(f"{route.endpoint}/abort", data=body, headers=_headers(route)) as response:
                await response.read()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, timeout=REQUEST_TIMEOUT, read_bufsize=2**20)
        return self._session


def _headers(route: EngineRoute) -> dict[str, str]:
    return {"Authorization": f"Bearer {route.token}", "Content-Type": "application/json"}


def _give_back(turns: list[WaitingTurn], code: str) -> None:
    for waiting in turns:
        waiting.give_back(code)
