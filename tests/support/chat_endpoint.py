"""An HTTP endpoint of the OpenAI chat-completions form that answers by rule: for agents with somebody else's model."""

import json
from collections.abc import Callable

from aiohttp import web

Rule = Callable[[dict], str]


class ChatEndpoint:
    """Answers with what `rule` makes of a request; `script` holds (status, body) to answer with before that."""

    def __init__(self, rule: Rule, key: str = "", port: int = 0) -> None:
        self.rule = rule
        self.key = key
        self.port = port
        self.script: list[tuple[int, str]] = []
        self.requests: list[dict] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").partition("/")[0]

    async def __aenter__(self) -> "ChatEndpoint":
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        self.requests.append(asked)
        sent = request.headers.get("Authorization", "")
        if self.script:
            status, body = self.script.pop(0)
            return web.Response(status=status, text=body.replace("{sent}", sent))
        if sent != (f"Bearer {self.key}" if self.key else ""):
            return web.Response(status=401, text=f"wrong key {sent}")
        choice = {"index": 0, "message": {"role": "assistant", "content": self.rule(asked)}, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice]})


def allowed_words(asked: dict) -> list[str]:
    """Read the allowed words out of the instruction."""
    text = asked["messages"][0]["content"]
    return text.partition("Use only these words: ")[2].partition(".")[0].split()
