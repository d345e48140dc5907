"""What this node keeps for nodes that nobody reaches: the control plane passes on here what they send.

Invariants: who may send what is decided by the control plane, which alone has the cluster key that these routes ask
for; what is sent is checked here, as nobody's. Claims carry the names that a trainer on this node would give them, so
what is kept here goes when the same of an own run would: with its checkpoint, with its run, or as too old a version.
"""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from aiohttp import ClientPayloadError, web

from workers.nodes.folder_contents import lay_down
from workers.training.version_store import BASE, RESTORABLE, holder_of, owner_of
from workers.transfer.base import StateError, StateFull
from workers.transfer.contents import CHUNK_BYTES
from workers.transfer.receiving import OWNER, BusyReceiving, ContentTooLarge, NotExpected, Receiving
from workers.transfer.upload_quota import QuotaReached

log = structlog.get_logger(__name__)

TEND_S = 10.0
LARGEST_MANIFEST = 32 * 2**20
"""Lists the chunks of some terabytes."""
UNNAMED = {"folder", "delta"}
"""Kept for a while: something is made of them."""
_POLICY, _KEEP = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}"), re.compile(r"version|state|base|folder|delta|step-[0-9]{1,9}")
_STATUS: dict[type[Exception], int] = {
    NotExpected: 409, ContentTooLarge: 413, BusyReceiving: 503, StateFull: 507, QuotaReached: 507,
}  # fmt: skip


class UploadRoutes:
    """What a node lets be sent to it. Who may ask is checked by whoever mounts them."""

    def __init__(self, home: str | Path, node: str, quota_gib: int = 0) -> None:
        self._home = home
        self._node = node
        self._receiving = Receiving(home, quota_gib)
        self._laying = asyncio.Lock()

    def mount(self, app: web.Application, guard: Callable[..., Any]) -> None:
        """Add the routes, each behind a guard."""
        at = "/v1/uploads/{run:[0-9]{1,18}}/{digest:[0-9a-f]{64}}"
        app.add_routes([web.put(at, partial(guard, self._begin))])
        app.add_routes([web.put(at + "/chunks/{chunk:[0-9a-f]{64}}", partial(guard, self._chunk))])
        app.add_routes([web.put(at + "/folder", partial(guard, self._folder))])

    async def tend(self) -> None:
        """Give up what broke off long ago."""
        try:
            await asyncio.to_thread(self._receiving.tend)
        except OSError as error:  # it stays until the next look
            log.warning("not removed", error=str(error))

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        """Answer with the chunks that are wanted of a content, none when it is here and kept."""
        keep, policy = request.query.get("keep", ""), request.query.get("policy", "")
        delta = request.query.get("delta", "")
        named = _POLICY.fullmatch(policy) or keep in UNNAMED
        if not (_KEEP.fullmatch(keep) and named and re.fullmatch(r"|[0-9a-f]{64}", delta)):
            return _refused(422, "bad_request", "keep and policy must say what the content is kept for")
        return await self._answer(request, LARGEST_MANIFEST, partial(self._begun, policy, keep, delta))

    def _begun(self, policy: str, keep: str, delta: str, run_id: int, digest: str, body: memoryview) -> dict[str, Any]:
        owner = owner_of(run_id, policy)
        named = {"version": owner, "base": f"{owner}-{BASE}"}.get(keep, holder_of(owner, keep))
        missing = self._receiving.begin(run_id, digest, bytes(body), "" if keep in UNNAMED else named, delta)
        if not missing and keep in {"version", "state"}:
            self._receiving.trim(named, *((RESTORABLE, RESTORABLE) if keep == "state" else ()))
        return {"missing": missing}

    async def _chunk(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["chunk"]

        def taken(run_id: int, digest: str, body: memoryview) -> dict[str, object]:
            self._receiving.take(run_id, digest, name, body)
            return {}

        return await self._answer(request, CHUNK_BYTES, taken)

    async def _folder(self, request: web.Request) -> web.StreamResponse:
        """Make a checkpoint's folder of a content that was sent; answer with its place."""
        step = request.query.get("step", "")
        if not re.fullmatch(r"[0-9]{1,9}", step):
            return _refused(422, "bad_request", "step must be a number")

        def laid(run_id: int, digest: str, body: memoryview) -> dict[str, object]:
            self._receiving.check_folder(run_id, digest)
            path, size = lay_down(self._home, digest, OWNER, run_id, int(step))
            self._receiving.drop(digest)
            return {"path": str(path), "bytes": size}

        async with self._laying:
            return await self._answer(request, 0, laid)

    async def _answer(self, request: web.Request, most: int, work: Callable[..., dict[str, object]]) -> web.Response:
        """Read a body of at most so many bytes, and work with it in a thread."""
        told = request.content_length
        if told is None or told > most:
            return _refused(413, "too_large", f"this takes at most {most} bytes, with their number told before")
        room = bytearray(told)
        if not await _filled(request, memoryview(room)):
            return _refused(422, "broken_off", "the body ended before its told length")
        run_id, digest = int(request.match_info["run"]), request.match_info["digest"]
        try:
            said = await asyncio.to_thread(work, run_id, digest, memoryview(room))
        except (NotExpected, ContentTooLarge, BusyReceiving, StateError) as refused:
            return _refused(_STATUS.get(type(refused), 422), refused.code, str(refused))
        return web.json_response({"keeper": self._node, **said})


async def _filled(request: web.Request, room: memoryview) -> bool:
    """Read a body into memory; tell whether it was whole."""
    got = 0
    try:
        async for piece in request.content.iter_any():
            room[got : got + len(piece)] = piece
            got += len(piece)
    except (ClientPayloadError, ConnectionError, ValueError):
        return False
    return got == len(room)


def _refused(status: int, code: str, detail: str) -> web.Response:
    return web.json_response({"code": code, "detail": detail}, status=status)
