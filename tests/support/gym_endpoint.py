"""A resources server of NeMo Gym's wire on a port of this host, in both protocols, which does what it is told."""

import asyncio
import json
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

COOKIE = "Shop___shop"
TOOLS = [
    {
        "type": "function", "name": "add", "description": "Add to the counter.", "strict": True,
        "parameters": {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]},
    },
    {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}, "strict": True},
]  # fmt: skip

FAULTS = {
    "flood": (200, "x" * (3 * 2**20)),
    "garbage": (200, "[1"),
    "list": (200, "[1]"),
    "biscuits": (200, "{}"),
    "raise": (500, "\"KeyError('shelf')\""),
    "gateway": (502, "no upstream"),
    "wrong": (422, '{"detail": "count is missing"}'),
}
"""What an endpoint answers where it is spoilt: status and text."""


def row(question: str = "Add 2 and read.", expected: int = 5, **more: Any) -> dict[str, Any]:
    """Return a row as the file of an environment has it."""
    said = [{"role": "developer", "content": "You count."}, {"role": "user", "content": question}]
    request = {"input": said, "tools": TOOLS, "parallel_tool_calls": False}
    return {"responses_create_params": request, "start": 3, "expected": expected, **more}


class GymEndpoint:
    """Counts in sessions that cookies tell apart; the reward is 1 where the count is the row's `expected`."""

    def __init__(self, port: int = 0) -> None:
        """`port`: where it listens; 0: any free one."""
        self.what = "well"
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[str] = []
        self.counts: dict[str, int] = {}
        self.closed: list[str] = []
        self.free = asyncio.Event()
        self.free.set()
        self.full = 503
        app = web.Application(client_max_size=2**22)
        for path in ("seed_session", "add", "read", "verify", "reset", "step", "close"):
            app.router.add_post(f"/shop/{path}", self.serve)
        self.http = TestServer(app, port=port or None)

    @property
    def host(self) -> str:
        return f"{self.http.host}:{self.http.port}"

    def paths(self) -> list[str]:
        return [path for path, _ in self.heard]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        path, body = request.path.removeprefix("/shop/"), await request.json()
        self.headers.append(request.headers.get("Authorization", ""))
        if not self.free.is_set():
            return web.Response(status=self.full, text="busy")
        self.heard.append((path, body))
        session = request.cookies.get(COOKIE) or f"s{len(self.counts)}"
        what, _, where = self.what.partition(" ")
        fault = await self.fault(what, request) if where == path else None
        answer = fault or web.json_response(getattr(self, path)(session, body))
        if not answer.prepared:
            answer.set_cookie(COOKIE, session)
        return answer

    async def fault(self, what: str, request: web.Request) -> web.StreamResponse | None:
        match what:
            case "hang":
                await asyncio.Event().wait()
            case "drop":
                assert request.transport is not None
                request.transport.close()
            case "moved":
                raise web.HTTPTemporaryRedirect("/shop/elsewhere")
            case "echo":
                return web.Response(text=f"You sent {request.headers['Authorization']}.")
            case "refused":
                return web.Response(status=403, text=f"no {request.headers['Authorization']}")
        if what not in FAULTS:
            return None
        status, text = FAULTS[what]
        answer = web.Response(status=status, text=text, content_type="application/json")
        for number in range(4 if what == "biscuits" else 0):
            answer.set_cookie(f"b{number}", "x" * 3000)
        return answer

    def seed_session(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        self.counts[session] = body["start"]
        return {}

    def add(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        self.counts[session] += body["count"]
        return {"success": True}

    def read(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"count": self.counts[session]}

    def verify(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {
            **body, "reward": float(self.counts[session] == body["expected"]), "distance": 0.25, "exact": True,
            "note": "near", "reward_components": {"style": 0.5},
        }  # fmt: skip
        return _spoilt(self.what, said)

    def reset(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        self.counts[session] = body["start"]
        return {"observation": f"The counter is {body['start']}.", "info": {"supports_explicit_close": True}}

    def step(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        items = body["response"]["output"]
        calls = [one for one in items if one["type"] == "function_call"]
        for one in calls:
            self.counts[session] += json.loads(one["arguments"]).get("count", 0)
        over = not calls
        told = [{"call_id": one["call_id"], "output": str(self.counts[session])} for one in calls]
        observation = None if over or self.what == "silent" else "Go on."
        if self.what == "silent":
            told = []
        said: dict[str, Any] = {
            "observation": observation, "reward": 0.5, "terminated": over, "truncated": False,
            "info": {"tool_outputs": told},
        }  # fmt: skip
        return _spoilt(self.what, said)

    def close(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        self.closed.append(session)
        return {}


def _spoilt(what: str, said: dict[str, Any]) -> dict[str, Any]:
    match what:
        case "none":
            return {**said, "reward": None}
        case "absent":
            return {name: value for name, value in said.items() if name != "reward"}
        case "much":
            return {**said, "reward": "much"}
        case "true":
            return {**said, "reward": True}
        case "nan":
            return {**said, "reward": float("nan")}
        case "nan_component":
            return {**said, "distance": float("nan")}
        case "masked":
            return {**said, "mask_sample": True, "failure_kind": "judge_unavailable", "failure_reason": "no judge"}
    return said
