"""An engine that answers by rule instead of by model, over the real dialect: for tests of whatever talks to engines.

It keeps the promises of the dialect (409 for weights it does not hold, one choice per prompt, log-probabilities for
every token) and can be told to misbehave: refuse, hang up in the middle, answer slowly.
"""

import asyncio
import time

import msgspec
from aiohttp import web

from flexmarl.contracts.plane_tokens import TokenPlane, check
from workers.rollout.engines.wire import (
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    HeldVersion,
    Load,
    NotHeld,
)


class ScriptedEngine:
    """Draws token `allowed[seed % len(allowed)]` for every position."""

    def __init__(
        self, holds: dict[str, HeldVersion], secret: str = "s", incarnation: str = "scripted-1", run_id: int = 1
    ) -> None:
        self.holds = holds
        self.secret = secret
        self.run_id = run_id
        self.incarnation = incarnation
        self.requests: list[CompletionRequest] = []
        self.hang_up_after: int | None = None
        """Answer this many choices of the next request, then break the connection."""
        self.delay_s = 0.0
        self.endpoint = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "ScriptedEngine":
        app = web.Application()
        app.router.add_post("/v1/completions", self._completions)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.endpoint = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        token = check(self.secret, request.headers["Authorization"].removeprefix("Bearer "), self.run_id, time.time())
        assert token.plane is TokenPlane.ROLLOUT
        asked = msgspec.json.decode(await request.read(), type=CompletionRequest)
        held = self.holds.get(asked.model)
        if held is None or not _may_answer(held, asked):
            body = msgspec.json.encode(NotHeld("not_held", "other weights", self.holds))
            return web.Response(status=409, body=body, content_type="application/json")
        self.requests.append(asked)
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        cut, self.hang_up_after = self.hang_up_after, None
        for index in range(len(asked.prompt)):
            if cut is not None and index >= cut:
                assert request.transport is not None
                request.transport.abort()
                return response
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await response.write(b"data: " + self._answer(asked, index) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def _answer(self, asked: CompletionRequest, index: int) -> bytes:
        words = asked.allowed_token_ids or [3]
        ids = [words[asked.seeds[index] % len(words)]] * asked.max_tokens
        choice = CompletionChoice(index, ids, [-1.0] * len(ids), "length", [self.holds[asked.model].version, len(ids)])
        reply = CompletionResponse(asked.model, [choice], Load(1, 0), self.incarnation)
        return msgspec.json.encode(reply)


def _may_answer(held: HeldVersion, asked: CompletionRequest) -> bool:
    if asked.follow:
        return held.version >= asked.version and not asked.digest
    return (held.version, held.digest) == (asked.version, asked.digest)
