"""An engine that only waits: the real dialect over HTTP, and a declared time per token instead of a model.

`slots` replies are made at once, the others wait their turn; it holds what it is told to load, forgets what it is told
to unload once that has ended or gone elsewhere, and refuses the rest. `python paced_engine.py SLOTS TOKEN_S LOAD_S`
prints its port.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec
from aiohttp import web

from workers.rollout.engines.wire import (
    PROGRESS_S,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    HeldVersion,
    Load,
    LoadRequest,
    NotHeld,
    UnloadRequest,
)


class PacedEngine:
    def __init__(self, slots: int, token_s: float, load_s: float) -> None:
        self._free = asyncio.Semaphore(slots)
        self._token_s, self._load_s = token_s, load_s
        self._holds: dict[str, HeldVersion] = {}
        self._running: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._leaves: dict[str, asyncio.Event] = {}
        """Policy -> set when what runs of it is to go on elsewhere."""
        self._life = "paced"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/completions", self._completions),
            web.post("/load", self._load),
            web.post("/unload", self._unload),
        ]

    async def _load(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=LoadRequest)
        await asyncio.sleep(self._load_s)
        self._holds[asked.policy] = HeldVersion(asked.version, asked.digest)
        return _json(self._holds[asked.policy])

    async def _unload(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=UnloadRequest)
        self._holds.pop(asked.policy, None)
        leaves = self._leaves.pop(asked.policy, None)
        if asked.hand_over and leaves is not None:
            leaves.set()
        while self._running[asked.policy] or self._waiting[asked.policy]:
            await asyncio.sleep(0.01)
        return _json({"unloaded": asked.policy})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=CompletionRequest)
        if asked.model not in self._holds:
            return _json(NotHeld("not_held", f"{asked.model} is not held", self._holds), 409)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for choices in self._made(asked):
            load = Load(self._running.total(), self._waiting.total())
            body = msgspec.json.encode(CompletionResponse(asked.model, choices, load, self._life))
            await response.write(b"data: " + body + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _made(self, asked: CompletionRequest) -> AsyncIterator[list[CompletionChoice]]:
        """Yield what has ended; nothing for a while is a sign of life."""
        made = {asyncio.create_task(self._make(asked, index)) for index in range(len(asked.prompt))}
        while made:
            ended, made = await asyncio.wait(made, timeout=PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
            yield [one.result() for one in ended]

    async def _make(self, asked: CompletionRequest, index: int) -> CompletionChoice:
        """Hold a slot for as long as the reply takes; what has not begun when its policy leaves is handed back."""
        policy = asked.model
        self._waiting[policy] += 1
        async with self._free:
            self._waiting[policy] -= 1
            made = len(asked.done[index].token_ids) if asked.done else 0
            if policy not in self._holds:
                return CompletionChoice(index, [], [], "abort", [], made)
            self._running[policy] += 1
            began = asyncio.get_running_loop().time()
            leaves = self._leaves.setdefault(policy, asyncio.Event())
            try:
                async with asyncio.timeout((asked.max_tokens - made) * self._token_s):
                    await leaves.wait()
                own = int((asyncio.get_running_loop().time() - began) / self._token_s)
                own = min(own, asked.max_tokens - made - 1)
                return CompletionChoice(index, [3] * own, [-1.0] * own, "abort", [0, own] if own else [], made)
            except TimeoutError:
                pass
            finally:
                self._running[policy] -= 1
        # The ids themselves are nobody's business here, and a long reply would only cost what is not measured.
        return CompletionChoice(index, [3], [-1.0], "length", [0, 1], made)


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")


async def serve(slots: int, token_s: float, load_s: float) -> None:
    """Serve until standard input ends."""
    app = web.Application()
    app.add_routes(PacedEngine(slots, token_s, load_s).routes())
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main(arguments: Sequence[str]) -> None:
    slots, token_s, load_s = arguments
    asyncio.run(serve(int(slots), float(token_s), float(load_s)))


if __name__ == "__main__":
    main(sys.argv[1:])
