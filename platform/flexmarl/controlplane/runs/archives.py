"""Downloads of checkpoints: asked of the node that has the folder, handed on byte for byte.

Invariants: whether there is an archive, and how long, is known before the answer begins; a refusal is therefore always
a problem, never a broken file. The folder is held while somebody reads it. Nothing of it is kept in this process.
"""

import contextlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from django.conf import settings

from flexmarl.controlplane.common.problems import Busy, Conflict, FieldError, ValidationProblem
from flexmarl.controlplane.common.store import giving_back, store_connection
from flexmarl.controlplane.inventory.models import Node
from flexmarl.controlplane.runs import checkpoints
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import checkpoint_rows

PREPARE_S = 620.0
"""A node may have to make a merged model first."""
SILENT_S = 60.0
PIECE = 2**20
HELD_S = checkpoint_rows.READ_S / 4


class CheckpointDamaged(Conflict):
    code = "checkpoint_damaged"
    title = "The checkpoint's folder is damaged"


class NodeAway(Busy):
    code = "node_away"
    title = "The node that holds the folder does not respond"


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    step: int
    policy: str = ""
    form: str = ""
    """`adapter` or `merged`; empty: as it lies there."""


@dataclass(frozen=True, slots=True)
class ArchiveReady:
    run_no: int
    step: int
    url: str
    bytes: int


def prepare(run: Run, wanted: ArchiveRequest) -> ArchiveReady:
    """Have an archive made ready. Raises CheckpointGone, CheckpointDamaged, ValidationProblem or NodeAway."""
    row = checkpoints.find(run, wanted.step)
    if not row.node:
        detail = f"The node of the checkpoint after step {wanted.step} is unknown."
        raise CheckpointDamaged(detail, extra={"reason": "unknown_node"})
    if not checkpoint_rows.read_on(store_connection(), run.no, wanted.step):
        raise checkpoints.gone(run, wanted.step)
    address = Node.objects.filter(name=row.node).values_list("address", flat=True).first()
    if not address:
        raise NodeAway(f"{row.node} is not registered.", headers={"Retry-After": "5"})
    query = urllib.parse.urlencode({"policy": wanted.policy, "form": wanted.form})
    url = f"http://{address}/v1/checkpoints/{run.no}/{wanted.step}/archive?{query}"
    return ArchiveReady(run.no, wanted.step, url, int(_ask(f"{url}&check=1", row.node)["bytes"]))


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
        return CheckpointDamaged(f"{detail}.", extra={"reason": code})
    return NodeAway(f"The node answered {status}: {detail}.", headers={"Retry-After": "5"})


class ArchiveStream:
    """The bytes of an archive; the folder is held until the last of them."""

    def __init__(self, ready: ArchiveReady) -> None:
        self._ready = ready

    async def __aiter__(self) -> AsyncIterator[bytes]:
        hold = giving_back(self._hold)
        held = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENT_S, sock_read=SILENT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self._ready.url, headers=_headers()) as response,
        ):
            response.raise_for_status()
            async for piece in response.content.iter_chunked(PIECE):
                yield piece
                if time.monotonic() - held > HELD_S:
                    held = time.monotonic()
                    await hold()

    def _hold(self) -> None:
        checkpoint_rows.read_on(store_connection(), self._ready.run_no, self._ready.step)


def _headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.CLUSTER_KEY}"}
