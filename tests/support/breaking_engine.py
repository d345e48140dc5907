"""An engine over the real dialect that stops in the middle of replies, in every way an engine can.

Its tokens follow from (seed, position) alone, as an engine's do, so a reply that moved can be compared with one that
did not.
"""

import asyncio
import time
import zlib
from collections.abc import Callable

import msgspec
from aiohttp import web

from flexmarl.contracts.plane_tokens import TokenPlane, check, sign
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from workers.rollout.engines.wire import AbortRequest, CompletionChoice, CompletionRequest, CompletionResponse, Load
from workers.rollout.turns import HANDED_BACK

SECRET, RUN = "s", 1


def token(seed: int, position: int) -> int:
    return 3 + zlib.crc32(f"{seed}:{position}".encode()) % 30


def logprob(seed: int, position: int) -> float:
    return -token(seed, position) / 7


Breaks = Callable[[int, int], tuple[int, str]]
"""(number of the request, position it begins at) -> position it stops at, and how: `hang_up`, `abort`, `out_of_memory`,
`silent`, `gap` (tells tokens behind a hole), or `` (it finishes)."""


def never(_: int, __: int) -> tuple[int, str]:
    return 1_000_000, ""


class BreakingEngine:
    def __init__(self, name: str, version: int = 0, breaks: Breaks = never, lease: int = 1, to: int = 0) -> None:
        self.lease = lease
        self.to = to
        """Lease of the engine where it says that replies go on that it hands back."""
        self.name = name
        self.version = version
        self.breaks = breaks
        self.requests: list[CompletionRequest] = []
        self.aborted: list[str] = []
        self.hung_up = 0
        """Requests whose client left before their end."""
        self.release = asyncio.Event()
        """Ends silence."""
        self._endpoint = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "BreakingEngine":
        app = web.Application()
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/abort", self._abort)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._endpoint = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release.set()
        assert self._runner is not None
        await self._runner.cleanup()

    def route(self) -> EngineRoute:
        holds = {"solver": PolicyPin(version=self.version, digest=f"{self.version}" * 64)}
        token = sign(SECRET, RUN, TokenPlane.ROLLOUT, time.time())
        return EngineRoute(self.lease, self._endpoint, token, self.name, holds)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        check(SECRET, request.headers["Authorization"].removeprefix("Bearer "), RUN, time.time())
        asked = msgspec.json.decode(await request.read(), type=CompletionRequest)
        self.requests.append(asked)
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for index in range(len(asked.prompt)):
                await self._reply(request, response, asked, index)
        except asyncio.CancelledError:
            self.hung_up += 1
            raise
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _abort(self, request: web.Request) -> web.Response:
        check(SECRET, request.headers["Authorization"].removeprefix("Bearer "), RUN, time.time())
        self.aborted += msgspec.json.decode(await request.read(), type=AbortRequest).request_ids
        return web.json_response({"aborted": []})

    async def _reply(
        self, request: web.Request, response: web.StreamResponse, asked: CompletionRequest, index: int
    ) -> None:
        """Tell what is made up to the break as progress, then break; or finish."""
        begin = len(asked.done[index].token_ids) if asked.done else 0
        stop, how = self.breaks(len(self.requests), begin)
        stop = min(stop, asked.max_tokens)
        at = begin
        if how:
            at = begin if how in HANDED_BACK else stop
            if at > begin or how == "gap":
                await self._tell(response, asked, index, (begin + (how == "gap"), stop), "")
        if how in ("hang_up", "gap"):
            assert request.transport is not None
            request.transport.close()
            raise ConnectionResetError
        if how == "silent":
            await self.release.wait()
        end = stop if how in HANDED_BACK else asked.max_tokens
        await self._tell(response, asked, index, (at, end), how if how in HANDED_BACK else "length")

    async def _tell(
        self, response: web.StreamResponse, asked: CompletionRequest, index: int, part: tuple[int, int], finish: str
    ) -> None:
        positions, seed = range(*part), asked.seeds[index]
        ids, logprobs = [token(seed, p) for p in positions], [logprob(seed, p) for p in positions]
        segments = [self.version, len(ids)] if ids else []
        choice = CompletionChoice(index, ids, logprobs, finish, segments, part[0], self.to if finish == "abort" else 0)
        reply = CompletionResponse(asked.model, [choice], Load(1, 0), self.name)
        await response.write(b"data: " + msgspec.json.encode(reply) + b"\n\n")
