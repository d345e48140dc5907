"""HTTP to one child: msgpack to trainers, JSON to engines, a bearer secret to both.

Invariants: a 409 or 422 is the child's own refusal and raises ChildRefused with its code; an answer that never came
raises ChildUnreachable. Calls have no time limit: who waits extends the command and learns of a lost child from the
store.
"""

from typing import TypeVar

import aiohttp
import msgspec

from flexmarl.store.control.leases import ChildEndpoint
from workers.child import ChildInterval, IntervalsRequest
from workers.errors import ChildRefused, ChildUnreachable
from workers.rollout.engines.wire import (
    HeldVersion,
    LoadRequest,
    SleepRequest,
    Slept,
    Stats,
    UnloadRequest,
    WakeRequest,
)

T = TypeVar("T")

CONNECT_S = 5.0
INTERVALS_S = 5.0


class _Refusal(msgspec.Struct):
    code: str = "refused"
    detail: str = ""


class ChildClient:
    """Speaks to the child behind an endpoint, over a session that the caller owns."""

    def __init__(self, session: aiohttp.ClientSession, child: ChildEndpoint) -> None:
        self.child = child
        self._session = session
        self._headers = {"Authorization": f"Bearer {child.secret}"}

    async def train(self, verb: str, request: msgspec.Struct, reply: type[T]) -> T:
        """Call a trainer's verb (`bind`, `accumulate`, `step`, `checkpoint`)."""
        body = await self._post(f"/{verb}", msgspec.msgpack.encode(request), "application/msgpack", None)
        return msgspec.msgpack.decode(body, type=reply)

    async def load(self, request: LoadRequest) -> HeldVersion:
        """Make an engine hold a policy version; returns what it holds of the policy then."""
        body = await self._post("/load", msgspec.json.encode(request), "application/json", None)
        return msgspec.json.decode(body, type=HeldVersion)

    async def unload(self, request: UnloadRequest) -> None:
        """Make an engine forget a policy; answers when nothing of it runs any more."""
        await self._post("/unload", msgspec.json.encode(request), "application/json", None)

    async def stats(self) -> Stats:
        """Ask an engine for its figures."""
        body = await self._asked("GET", "/stats", None, "application/json", INTERVALS_S)
        return msgspec.json.decode(body, type=Stats)

    async def sleep(self, request: SleepRequest | None = None) -> Slept:
        """Make an engine give its memory back, by default only one without requests; returns when it has."""
        body = await self._post("/sleep", msgspec.json.encode(request or SleepRequest()), "application/json", None)
        return msgspec.json.decode(body, type=Slept)

    async def wake(self, request: WakeRequest | None = None) -> dict[str, HeldVersion]:
        """Make an engine hold again what it held when it fell asleep, or nothing; returns what it holds."""
        body = await self._post("/wake", msgspec.json.encode(request or WakeRequest()), "application/json", None)
        return msgspec.json.decode(body, type=dict[str, HeldVersion])

    async def intervals(self, acknowledged: int) -> list[ChildInterval]:
        """Fetch the closed intervals behind the acknowledged one."""
        request = msgspec.json.encode(IntervalsRequest(acknowledged))
        body = await self._post("/intervals", request, "application/json", INTERVALS_S)
        return msgspec.json.decode(body, type=list[ChildInterval])

    async def _post(self, path: str, body: bytes, kind: str, total_s: float | None) -> bytes:
        return await self._asked("POST", path, body, kind, total_s)

    async def _asked(self, method: str, path: str, body: bytes | None, kind: str, total_s: float | None) -> bytes:
        headers = {**self._headers, "Content-Type": kind}
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_S)
        try:
            async with self._session.request(
                method, self.child.endpoint + path, data=body, headers=headers, timeout=timeout
            ) as response:
                answer = await response.read()
                if response.status == 200:
                    return answer
                raise _refusal(response.status, answer, kind)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ChildUnreachable(f"{path}: {type(error).__name__} {error}") from error


def _refusal(status: int, answer: bytes, kind: str) -> ChildRefused:
    decode = msgspec.msgpack.decode if kind == "application/msgpack" else msgspec.json.decode
    try:
        refusal = decode(answer, type=_Refusal)
    except msgspec.DecodeError:
        text = answer[:500].decode("utf-8", "replace")
        return ChildRefused("child_error", f"status {status}: {text}", status)
    return ChildRefused(refusal.code, refusal.detail, status)
