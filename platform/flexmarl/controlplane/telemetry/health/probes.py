"""`/healthz` and `/readyz` in front of everything else, so that they stay true when the process is full.

Invariants: neither waits in the line of requests nor for a thread that requests use. Alive is answered by the event
loop itself: an answer proves that it turns. Ready is looked at in a thread of its own, once for all who ask at a time,
and answered within `ANSWER_S`: a check that has no answer by then has failed, and those behind it are unknown.
"""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from flexmarl.controlplane.telemetry.health import readiness

ANSWER_S = 2.5
KEPT_S = 0.5
"""A look serves everybody who asks within this time."""
_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_METHODS = frozenset({"GET", "HEAD"})


class Probes:
    """The application behind its two probes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        self._look: asyncio.Future[readiness.ReadinessReport] | None = None
        self._looked_at = 0.0
        self._found: dict[str, str] = {}
        """What the look under way has found until now: check -> result."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer a probe, or hand over."""
        if scope["type"] != "http" or scope["method"] not in _METHODS:
            await self._inner(scope, receive, send)
        elif scope["path"] == "/healthz":
            await _answer(scope, send, 200, readiness.ALIVE)
        elif scope["path"] == "/readyz":
            report = await self._report()
            await _answer(scope, send, report.status, report.body)
        else:
            await self._inner(scope, receive, send)

    async def _report(self) -> readiness.ReadinessReport:
        look = self._look
        if look is None or (look.done() and time.monotonic() - self._looked_at >= KEPT_S):
            self._looked_at = time.monotonic()
            self._found = {}
            look = asyncio.get_running_loop().run_in_executor(self._thread, readiness.report, self._found)
            self._look = look
        try:
            return await asyncio.wait_for(asyncio.shield(look), ANSWER_S)
        except TimeoutError:
            return await asyncio.to_thread(readiness.unanswered, ANSWER_S, dict(self._found))  # it looks at the disk


async def _answer(scope: dict[str, Any], send: Any, status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    headers = [*_HEADERS, (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": int(HTTPStatus(status)), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})
