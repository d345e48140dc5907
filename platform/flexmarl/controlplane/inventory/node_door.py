"""The door of nodes that have a token instead of the installation's secrets: operations of the store, and news.

`POST /nodes/operations/<name>` does one operation, as its caller may (`flexmarl.store.node_operations`);
`GET /nodes/news` streams what there is to look at. News are hints: rows are the truth, and every look reads them.
Nothing here opens a door of the API, and no credential of the API opens this one.
"""

import functools
from collections.abc import Callable
from typing import Any

import psycopg
import structlog
from django.conf import settings
from django.db import DatabaseError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST
from psycopg_pool import PoolTimeout

from flexmarl.controlplane.common.problems import Busy, ProblemError
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import node_news, node_tokens
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.node_tokens import TokenRefused
from flexmarl.store import node_wire, schema
from flexmarl.store.control import commands
from flexmarl.store.control.commands import Taken
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.errors import StoreError
from flexmarl.store.node_operations import NodeCaller, NodeOperation
from flexmarl.store.node_wire import Unreadable

log = structlog.get_logger(__name__)
LARGEST_BYTES = 512 * 2**20
"""Of one call: groups with their samples are the largest."""
REFUSED, NOT_ITS_OWN, UNREADABLE, AWAY = 401, 403, 422, 503


@require_GET
def hello(request: HttpRequest) -> HttpResponse:
    """Say who the caller is, and which version of the store it speaks to."""
    try:
        token = node_tokens.check(request.headers.get("Authorization", ""))
    except TokenRefused as refused:
        return refusal(REFUSED, "not_admitted", str(refused))
    return JsonResponse({"node": token.node, "pool": token.pool, "schema": schema.VERSION})


@csrf_exempt
@require_POST
def operate(request: HttpRequest, name: str) -> HttpResponse:
    """Do an operation for a node: 200 with its reply, 409 with the store's refusal."""
    try:
        token = node_tokens.check(request.headers.get("Authorization", ""))
    except TokenRefused as refused:
        return refusal(REFUSED, "not_admitted", str(refused))
    except (OperationalError, PoolTimeout, Busy) as away:
        return refusal(AWAY, "database_away", str(away))
    one = node_wire.operation(name)
    if one is None:
        return refusal(404, "unknown_operation", f"there is no operation {name}")
    body = request.read(LARGEST_BYTES + 1)
    if len(body) > LARGEST_BYTES:
        return refusal(413, "too_large", f"a call has at most {LARGEST_BYTES} bytes")
    try:
        return _done(one, token, node_wire.arguments_of(one, body))
    except Unreadable as unreadable:
        return refusal(UNREADABLE, "unreadable", str(unreadable))


def _done(one: NodeOperation, token: NodeToken, arguments: dict[str, Any]) -> HttpResponse:
    try:
        conn = store_connection()
        if not one.may(conn, NodeCaller(token.node, token.pool), arguments):
            log.warning("node_operation_refused", node=token.node, operation=one.name)
            return refusal(NOT_ITS_OWN, "not_its_own", f"{token.node} may not do {one.name} with these arguments")
        known = {name: _as_stored(conn, value) for name, value in arguments.items()}
        given = {name: _GIVEN[name]() for name in one.given}
        reply = node_wire.encode(one.function(conn, **known, **given))
    except StoreError as refused:
        return HttpResponse(node_wire.refusal_of(refused), status=409, content_type=node_wire.MEDIA_TYPE)
    except (OperationalError, psycopg.OperationalError, PoolTimeout, ProblemError) as away:
        return refusal(AWAY, "database_away", str(away))
    except (DatabaseError, psycopg.Error) as error:
        log.warning("node_operation_failed", node=token.node, operation=one.name, error=str(error))
        return refusal(500, "database_error", str(error))
    return HttpResponse(reply, content_type=node_wire.MEDIA_TYPE)


def _as_stored(conn: psycopg.Connection, value: Any) -> Any:
    """Replace what a caller says of its holds by what their rows say."""
    if isinstance(value, Taken):
        return commands.as_stored(conn, value)
    if isinstance(value, list | tuple) and any(isinstance(one, Taken) for one in value):
        return [_as_stored(conn, one) for one in value]
    return value


@functools.cache
def _segment_folder() -> SegmentFolder:
    return SegmentFolder(settings.PAYLOADS)


_GIVEN: dict[str, Callable[[], Any]] = {"folder": _segment_folder}
"""Parameters that this side fills in -> how."""


@require_GET
def news(request: HttpRequest) -> HttpResponseBase:
    """Stream what there is to look at for one role of a node, as lines of JSON, until the token holds no more."""
    role = request.GET.get("role", "")
    if role not in node_news.ROLES:
        return refusal(UNREADABLE, "unreadable", f"role: {role!r}; it must be one of {', '.join(node_news.ROLES)}")
    header = request.headers.get("Authorization", "")
    try:
        token = node_tokens.check(header)
    except TokenRefused as refused:
        return refusal(REFUSED, "not_admitted", str(refused))
    stream = node_news.lines(NodeCaller(token.node, token.pool), role, lambda: node_tokens.check(header))
    answer = StreamingHttpResponse(stream, content_type="application/x-ndjson")
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["X-Accel-Buffering"] = "no"
    return answer


def refusal(status: int, code: str, detail: str) -> HttpResponse:
    """Say no, with a code for programs."""
    return JsonResponse({"code": code, "detail": detail}, status=status)
