"""Contents of the state plane for nodes with a token: what nodes serve to their peers, passed on by digest.

Invariants: the cluster key stays here. Names are digests and never paths. Whoever knows a digest may read what it
names, as among nodes; the reader checks what it gets. The first node that has it answers, with ranges.
"""

import http.client
import re
from collections.abc import AsyncIterator
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_GET

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import node_tokens
from flexmarl.controlplane.inventory.node_door import REFUSED, refusal
from flexmarl.controlplane.inventory.node_tokens import TokenRefused
from flexmarl.store.control import nodes

SILENT_S = 30.0
PIECE = 2**20
ANY_RUN = 0
_NAME = re.compile(r"[0-9a-f]{64}")
_TOLD = ("Content-Length", "Content-Range", "Content-Type", "Accept-Ranges")


@require_GET
def manifest(request: HttpRequest, digest: str) -> HttpResponseBase:
    """Answer with the manifest of a content."""
    return _passed_on(request, digest, f"/v1/state/{digest}")


@require_GET
def delta(request: HttpRequest, digest: str) -> HttpResponseBase:
    """Answer with the digest of what makes a content of one that the caller has."""
    asked = [("base", base) for base in request.GET.getlist("base")] + [("most", request.GET.get("most", ""))]
    return _passed_on(request, digest, f"/v1/state/{digest}/delta?{urlencode(asked)}")


@require_GET
def chunk(request: HttpRequest, name: str) -> HttpResponseBase:
    """Answer with a chunk, or the range of it that was asked for."""
    return _passed_on(request, name, f"/v1/state/chunks/{name}")


def _passed_on(request: HttpRequest, name: str, path: str) -> HttpResponseBase:
    try:
        node_tokens.check(request.headers.get("Authorization", ""))
    except TokenRefused as refused:
        return refusal(REFUSED, "not_admitted", str(refused))
    if not _NAME.fullmatch(name):
        return refusal(404, "state_missing", "a content's name has 64 hexadecimal digits")
    headers = {"Authorization": f"Bearer {settings.CLUSTER_KEY}"}
    if "Range" in request.headers:
        headers["Range"] = request.headers["Range"]
    away = ""
    for address in nodes.addresses_for(store_connection(), ANY_RUN):
        connection = http.client.HTTPConnection(address, timeout=SILENT_S)
        try:
            connection.request("GET", path, headers=headers)
            found = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            away = f"a node does not answer: {error}"
            continue
        if found.status in {http.client.OK, http.client.PARTIAL_CONTENT}:
            return _streamed(connection, found)
        connection.close()
    return refusal(502, "node_away", away) if away else refusal(404, "state_missing", "no node that is reached has it")


def _streamed(connection: http.client.HTTPConnection, found: http.client.HTTPResponse) -> StreamingHttpResponse:
    async def pieces() -> AsyncIterator[bytes]:
        try:
            while piece := await sync_to_async(found.read, thread_sensitive=False)(PIECE):
                yield piece
        finally:
            connection.close()

    answer = StreamingHttpResponse(pieces(), status=found.status)
    for header in _TOLD:
        if (value := found.headers.get(header)) is not None:
            answer.headers[header] = value
    return answer
