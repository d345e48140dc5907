"""Downloads from nodes: asked of the node that has the bytes, handed on byte for byte.

Invariants: whether there is an archive, and how long, is known before the answer begins; a refusal is therefore always
a problem, never a broken file. Nothing of it is kept in this process.
"""

import contextlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import aiohttp
from django.conf import settings

from flexmarl.controlplane.common.problems import Busy, FieldError, ValidationProblem
from flexmarl.controlplane.common.store import giving_back, store_connection
from flexmarl.store.control import nodes

PREPARE_S = 620.0
"""A node may have to make a merged model first."""
SILENT_S = 60.0
PIECE = 2**20


class NodeAway(Busy):
    code = "node_away"
    title = "The node that holds the folder does not respond"


class NodeCannot(Exception):
    """The node has not what was asked for; `code` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


@dataclass(frozen=True, slots=True)
class ArchiveReady:
    url: str
    bytes: int


def prepare(node: str, path: str, query: Mapping[str, str]) -> ArchiveReady:
    """Have an archive made ready. Raises NodeCannot, ValidationProblem or NodeAway."""
    address = nodes.address_of(store_connection(), node)
    if not address:
        raise NodeAway(f"{node} is not registered.", headers={"Retry-After": "5"})
    url = f"http://{address}{path}?{urllib.parse.urlencode(query)}"
    return ArchiveReady(url, int(_ask(f"{url}&check=1", node)["bytes"]))


def _ask(url: str, node: str) -> dict[str, int]:
    request = urllib.request.Request(url, headers=_headers())
    try:
        with urllib.request.urlopen(request, timeout=PREPARE_S) as answer:
            found: dict[str, int] = json.loads(answer.read())
            return found
    except urllib.error.HTTPError as error:
        said = {}
        with contextlib.suppress(ValueError):
            said = json.loads(error.read())
        raise _refusal(error.code, said.get("code", ""), said.get("detail", str(error))) from None
    except (OSError, ValueError) as error:
        raise NodeAway(f"{node} did not answer: {error}.", headers={"Retry-After": "5"}) from None


def _refusal(status: int, code: str, detail: str) -> Exception:
    if status == 422:
        field = detail.partition(" ")[0]
        hint = detail.partition("; ")[2]
        return ValidationProblem(detail, errors=[FieldError(field, code or "bad_request", detail, hint, "query")])
    if status == 409:
        return NodeCannot(code, detail)
    return NodeAway(f"The node answered {status}: {detail}.", headers={"Retry-After": "5"})


class ArchiveStream:
    """The bytes of an archive; what is read is held until the last of them."""

    def __init__(self, ready: ArchiveReady, hold: Callable[[], None] | None = None, hold_s: float = 0.0) -> None:
        """`hold` is called every `hold_s` seconds, in a thread that may use the database."""
        self._ready = ready
        self._hold = hold
        self._hold_s = hold_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        hold = giving_back(self._hold) if self._hold else None
        held = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENT_S, sock_read=SILENT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self._ready.url, headers=_headers()) as response,
        ):
            response.raise_for_status()
            async for piece in response.content.iter_chunked(PIECE):
                yield piece
                if hold and time.monotonic() - held > self._hold_s:
                    held = time.monotonic()
                    await hold()


def _headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.CLUSTER_KEY}"}
