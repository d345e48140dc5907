"""A server of OpenEnv's wire on a port of this host, which does what it is told."""

import json
from typing import Any

from aiohttp import WSCloseCode, web
from aiohttp.test_utils import TestServer

WORD = {"type": "object", "properties": {"metadata": {"type": "object"}, "word": {"type": "string"}}}


class OpenEnvEndpoint:
    """Serves `/ws` and `/schema` as the library does, with one observation after the other."""

    def __init__(self) -> None:
        self.what = "well"
        self.schema: Any = {"action": WORD}
        self.heard: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.sessions = self.most = self.begun = 0
        self.capacity = 100
        app = web.Application()
        app.router.add_get("/shop/ws", self.talk)
        app.router.add_get("/shop/schema", self.say_schema)
        self.http = TestServer(app)

    @property
    def host(self) -> str:
        return f"{self.http.host}:{self.http.port}"

    async def say_schema(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.get("Authorization", ""))
        if self.what == "moved":
            raise web.HTTPFound("/shop/elsewhere")
        if self.what == "refused":
            return web.Response(status=403, text=f"no {request.headers['Authorization']}")
        return web.json_response(self.schema)

    async def talk(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.get("Authorization", ""))
        if self.what == "moved_later":
            raise web.HTTPFound("/shop/elsewhere")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.sessions >= self.capacity:
            await self.error(socket, "CAPACITY_REACHED", "Server at capacity")
            await socket.close()
            return socket
        self.sessions += 1
        self.begun += 1
        self.most = max(self.most, self.sessions)
        steps = 0
        try:
            async for message in socket:
                order = json.loads(message.data)
                steps += order["type"] == "step"
                self.heard.append(order)
                if order["type"] == "close":
                    break
                await self.answer(socket, order, steps)
        finally:
            self.sessions -= 1
        return socket

    async def error(self, socket: web.WebSocketResponse, code: str, message: str) -> None:
        await socket.send_json({"type": "error", "data": {"code": code, "message": message}})

    async def answer(self, socket: web.WebSocketResponse, order: dict[str, Any], steps: int) -> None:
        step = order["type"] == "step"
        match self.what if step or self.what.endswith("_reset") else "well":
            case "hang" | "hang_reset":
                return
            case "drop":
                await socket.close(code=WSCloseCode.GOING_AWAY)
            case "flood":
                await socket.send_str("x" * (3 * 2**20))
            case "garbage":
                await socket.send_str("[1")
            case "raise":
                await self.error(socket, "EXECUTION_ERROR", "the road is closed")
            case "refuse":
                await self.error(socket, "VALIDATION_ERROR", "Invalid message")
            case _:
                await socket.send_json(self.observation(order, steps))

    def observation(self, order: dict[str, Any], steps: int) -> dict[str, Any]:
        step = order["type"] == "step"
        reward = {"none": None, "much": "much", "nan": float("nan")}.get(self.what, 0.5)
        text = f"{order['data'].get('word')} again" if step else "Say a word."
        data = {"observation": {"text": text}, "reward": reward if step else None, "done": steps == 2}
        return {"type": "observation", "data": data}
