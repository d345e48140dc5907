"""The HTTP face of an engine.

One event loop does everything in turns: between two decode steps it takes requests in and hands answers out, so no
thread waits for another's interpreter lock. Bringing new weights in runs in a thread while generation pauses. A client
that hangs up ends its requests.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from workers.child import IntervalLog
from workers.child_server import json_response
from workers.memory import lacks_memory
from workers.rollout.engines.base import Engine
from workers.rollout.engines.busy import BusyTime
from workers.rollout.engines.calls import Calls, CompletionCall
from workers.rollout.engines.refusing import refusal_of
from workers.rollout.engines.requests import BadRequestError, Request
from workers.rollout.engines.sleeping import Sleep
from workers.rollout.engines.tokenizers import Tokenizers
from workers.rollout.engines.wire import (
    PROGRESS_S,
    AbortRequest,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    HeldVersion,
    LoadRequest,
    NotHeld,
    SleepRequest,
    Slept,
    Stats,
    UnloadRequest,
    WakeRequest,
)

log = structlog.get_logger(__name__)


class Fetch(Protocol):
    def __call__(self, policy: str, digest: str) -> Any:
        """Return weights in the engine's form; runs in a thread."""

    def forget(self) -> None:
        """Keep nothing of what was fetched."""


UNDERSTAND_S = 10.0
"""How long what a reply must be may take to compile, with those before it."""
COMPILER = ThreadPoolExecutor(1, "grammars")
"""One at a time: a format that takes long keeps other formats waiting, and no reply."""
UNLOAD_LOOKS_S = 0.01
"""Pause between two looks whether the last request of a policy has ended."""


class EngineServer:
    def __init__(
        self,
        engine: Engine,
        fetch: Fetch,
        incarnation: str,
        intervals: IntervalLog,
        tokenizers: Tokenizers,
        devices: int = 1,
    ) -> None:
        self._engine = engine
        self._fetch = fetch
        self._incarnation = incarnation
        self._intervals = intervals
        self._tokenizers = tokenizers
        self._busy_time = BusyTime(intervals, devices)
        self._calls = Calls()
        self._orders: dict[str, int] = {}
        """Policy -> number of the last load command; an older one that arrives late is refused."""
        self._sleep = Sleep()
        self._device = asyncio.Lock()
        """Held by whoever computes: generation or a load."""
        self._wake = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        """Return what the child serves besides health and intervals."""
        return [
            web.post("/v1/completions", self._refusing(self._completions)),
            web.post("/load", self._refusing(self._load)),
            web.post("/unload", self._refusing(self._unload)),
            web.post("/sleep", self._refusing(self._fall_asleep)),
            web.post("/wake", self._refusing(self._wake_up)),
            web.post("/abort", self._refusing(self._abort)),
            web.get("/stats", self._stats),
        ]

    async def generate(self) -> None:
        """Decode while there is work; between steps the loop serves HTTP."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            with self._intervals.progress.work():
                while self._engine.busy:
                    async with self._device:
                        for policy in self._engine.busy_policies():
                            self._step(policy)
                    await asyncio.sleep(0)
            self._busy_time.close()

    def _step(self, policy: str) -> None:
        started, worked = time.time(), time.process_time()
        try:
            finished, made = self._engine.step_policy(policy)
        except Exception as error:  # memory runs out under many names; whatever else it is ends this life
            if not lacks_memory(error):
                raise
            finished, made = self._engine.shed(policy, error), 0
            log.warning(
                "memory ran out", policy=policy, handed_back=len(finished), now_at_once=self._engine.rows_of(policy)
            )
        cpu = time.process_time() - worked
        self._busy_time.add(policy, started, time.time(), made, self._engine.prompt_tokens, cpu)
        self._calls.settle(finished)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=CompletionRequest)
        self._sleep.refuse()
        call = self._calls.open(asked)
        try:
            await self._understand(call.requests)
            self._engine.submit(call.requests)
            self._wake.set()
            if asked.stream:
                return await self._stream(request, call)
            choices = [choice async for part in call.finished() for choice in part]
            return json_response(self._response(call, sorted(choices, key=lambda choice: choice.index)))
        finally:
            self._calls.settle(self._engine.abort(self._calls.close(call)))

    async def _understand(self, requests: list[Request]) -> None:
        """Have what replies must be compiled beside the steps, one at a time. Raises BadRequestError in the end."""
        if not any(request.sampling.structured for request in requests):
            return
        compiling = asyncio.get_running_loop().run_in_executor(COMPILER, self._engine.understand, requests)
        try:
            await asyncio.wait_for(compiling, UNDERSTAND_S)
        except TimeoutError as late:
            text = f"structured: it was not compiled within {UNDERSTAND_S:g} s; say less in it"
            raise BadRequestError(text) from late

    async def _stream(self, request: web.Request, call: CompletionCall) -> web.StreamResponse:
        """Send each choice when it is finished, and what running ones made, as server-sent events."""
        if call.progress and (self._telling is None or self._telling.done()):
            self._telling = asyncio.ensure_future(self._tell())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # who hung up reads no more; its replies end with its call
            async for choices in call.finished():
                await response.write(b"data: " + msgspec.json.encode(self._response(call, choices)) + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _tell(self) -> None:
        """Tell progress while somebody wants to hear of it; between two steps, like everything here."""
        while self._calls.watched:
            await asyncio.sleep(PROGRESS_S)
            self._calls.tell(self._engine.parts)

    def _response(self, call: CompletionCall, choices: list[CompletionChoice]) -> CompletionResponse:
        return CompletionResponse(call.model, choices, self._engine.depth(), self._incarnation)

    async def _load(self, request: web.Request) -> web.Response:
        """Hold a version from now on; answers when it is served."""
        asked = msgspec.json.decode(await request.read(), type=LoadRequest)
        async with self._device:
            if self._superseded(asked):
                return self._refusal(409, "superseded", f"{asked.policy}: superseded by a later load")
            if self._engine.has(asked.policy, asked.version, asked.digest):
                return json_response(HeldVersion(asked.version, asked.digest))
            self._busy_time.close()
            self._sleep.refuse()
            self._tokenizers.check(asked)
            started = time.time()
            with self._intervals.progress.work():
                weights = await asyncio.to_thread(self._bring, asked)
                self._engine.load(asked.policy, asked.version, asked.digest, weights, asked.keeps)
                del weights
                await asyncio.to_thread(self._sleep.spare.return_much)
            self._intervals.add("load", asked.policy, started, time.time())
        return json_response(HeldVersion(asked.version, asked.digest))

    def _bring(self, asked: LoadRequest) -> object:
        """Do all of a load that the engine need not stand still for; requests are taken meanwhile."""
        weights = self._fetch(asked.policy, asked.digest)
        self._engine.make_room(asked.policy, asked.keeps)
        return weights

    async def _fall_asleep(self, request: web.Request) -> web.Response:
        """Give the memory back, once nothing runs if that is waited for; answers when nothing is held any more."""
        asked = msgspec.json.decode(await request.read() or b"{}", type=SleepRequest)
        if self._sleep.overtaken(asked.order):
            return self._refusal(409, "superseded", "superseded by a later command to sleep or to wake")
        self._sleep.near = asked.drain
        try:
            while asked.drain and self._engine.busy:
                await asyncio.sleep(UNLOAD_LOOKS_S)
            async with self._device:
                awake, started = self._sleep.held is None, time.time()
                self._sleep.begin(self._engine)
                self._fetch.forget()
                if awake:
                    self._busy_time.close()
                    self._intervals.add("sleep", "", started, time.time(), bytes=self._sleep.freed)
        finally:
            self._sleep.near = False
        return json_response(Slept(self._sleep.freed))

    async def _wake_up(self, request: web.Request) -> web.Response:
        """Hold again what was held before, or nothing if that is asked for; answers with what is held."""
        asked = msgspec.json.decode(await request.read() or b"{}", type=WakeRequest)
        if self._sleep.overtaken(asked.order):
            return self._refusal(409, "superseded", "superseded by a later command to sleep or to wake")
        async with self._device:
            asleep, started = self._sleep.held is not None, time.time()
            with self._intervals.progress.work():
                if asked.empty:
                    self._sleep.forget()
                await self._sleep.end(self._engine, lambda asked: asyncio.to_thread(self._bring, asked))
            if asleep:
                self._intervals.add("wake", "", started, time.time())
        return json_response(self._engine.holds())

    async def _unload(self, request: web.Request) -> web.Response:
        """Forget a policy once nothing of it runs; from now on its requests are refused."""
        asked = msgspec.json.decode(await request.read(), type=UnloadRequest)
        self._sleep.refuse()
        if self._superseded(asked):
            return self._refusal(409, "superseded", f"{asked.policy}: superseded by a later load")
        self._calls.settle(self._engine.close(asked.policy, asked.hand_over), asked.to)
        while not self._engine.forget(asked.policy):
            await asyncio.sleep(UNLOAD_LOOKS_S)
        return json_response({"unloaded": asked.policy})

    def _superseded(self, asked: LoadRequest | UnloadRequest) -> bool:
        """Tell whether a later command about a policy has been here; note this one if not."""
        if asked.order and asked.order < self._orders.get(asked.policy, 0):
            return True
        self._orders[asked.policy] = max(asked.order, self._orders.get(asked.policy, 0))
        return False

    async def _abort(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=AbortRequest)
        ended = self._engine.abort(set(asked.request_ids))
        self._calls.settle(ended)
        return json_response({"aborted": [answer.request.request_id for answer in ended]})

    async def _stats(self, _: web.Request) -> web.Response:
        engine, load, cache_use = self._engine, self._engine.depth(), self._engine.cache_use
        stats = Stats(
            incarnation=self._incarnation,
            running=load.running,
            waiting=load.waiting,
            slots=engine.rows,
            generated_tokens=engine.generated_tokens,
            prompt_tokens=engine.prompt_tokens,
            holds=engine.holds(),
            cache_use=None if cache_use is None else round(cache_use, 4),
            cached_tokens=engine.cached_tokens,
        )
        return json_response(stats)

    def _refusing(self, handler: Handler) -> Handler:
        """Turn what a request did wrong into an answer that says so."""

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except Exception as error:  # whatever engines and the state plane raise; what nobody foresaw goes on
                refusal = refusal_of(error)
                if refusal is None:
                    raise
                return self._refusal(refusal.status, refusal.code, error, refusal.request_ids)

        return answer

    def _refusal(self, status: int, code: str, problem: Exception | str, ids: Sequence[str] = ()) -> web.Response:
        return json_response(NotHeld(code, str(problem), self._engine.holds(), list(ids)), status)
