"""A scoring service that answers by rule, late, wrongly or never: what a reward of type `service` asks."""

import asyncio
import json

from aiohttp import web


class ScoringService:
    """Gives each role the length of what it said; `script` holds (status, body) to answer with before that."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.script: list[tuple[int, str]] = []
        self.asked: list[dict] = []
        self.hold = asyncio.Event()
        """Nobody is answered before it is set."""
        self.hold.set()
        self.url = ""
        self._runner: web.AppRunner | None = None

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").partition("/")[0]

    async def __aenter__(self) -> "ScoringService":
        app = web.Application()
        app.router.add_post("/score", self._score)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/score"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self.hold.set()
        await self._runner.cleanup()

    async def _score(self, request: web.Request) -> web.Response:
        played = json.loads(await request.read())
        self.asked.append(played)
        if self.script:
            status, body = self.script.pop(0)
            return web.Response(status=status, text=body)
        if request.headers.get("Authorization", "") != (f"Bearer {self.key}" if self.key else ""):
            return web.Response(status=401, text="wrong key")
        await self.hold.wait()
        scores = dict.fromkeys(played["scores"], 0.0)
        for turn in played["turns"]:
            scores[turn["role"]] += turn["tokens"]
        return web.json_response({"scores": scores, "facts": {"turns": float(len(played["turns"]))}})
