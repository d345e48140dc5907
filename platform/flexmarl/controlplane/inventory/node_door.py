"""The door of nodes that have a token instead of the installation's secrets: operations of the store.

`operate` does one operation, as its caller may (`flexmarl.store.node_operations`); `door_server` answers with it.
Nothing here opens a door of the API, and no credential of the API opens this one.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog
from django.conf import settings
from django.db import DatabaseError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET
from psycopg_pool import PoolTimeout

from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import node_tokens
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.node_tokens import TokenRefused
from flexmarl.store import node_wire, schema
from flexmarl.store.control import commands, nodes
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
    """Say who the caller is, where others of its pool are read, and which version of the store it speaks to."""
    try:
        token = node_tokens.check(request.headers.get("Authorization", ""))
    except TokenRefused as refused:
        return refusal(REFUSED, "not_admitted", str(refused))
    others = NodeToken.objects.filter(pool=token.pool, revoked_at=None).exclude(pk=token.pk)
    peers = nodes.peer_addresses(store_connection(), list(others.values_list("node", flat=True)))
    return JsonResponse({"node": token.node, "pool": token.pool, "peers": peers, "schema": schema.VERSION})


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a node is answered."""

    status: int
    body: bytes
    kind: str = node_wire.MEDIA_TYPE
    """Media type of the body."""


def operate(conn: psycopg.Connection, token: NodeToken, name: str, body: bytes) -> NodeAnswer:
    """Do an operation for the bearer of a token: 200 with its reply, 409 with the store's refusal."""
    one = node_wire.operation(name)
    if one is None:
        return refused(404, "unknown_operation", f"there is no operation {name}")
    try:
        return _done(conn, one, token, node_wire.arguments_of(one, body))
    except Unreadable as unreadable:
        return refused(UNREADABLE, "unreadable", str(unreadable))


def operate_together(
    conn: psycopg.Connection, one: NodeOperation, asked: Sequence[tuple[NodeToken, bytes]]
) -> list[NodeAnswer]:
    """Do calls of an operation that has a way for many; where that fails, each by itself, so that each is told why."""
    assert one.many is not None
    answers: dict[int, NodeAnswer] = {}
    calls: dict[int, dict[str, Any]] = {}
    for number, (token, body) in enumerate(asked):
        try:
            arguments = node_wire.arguments_of(one, body)
        except Unreadable as unreadable:
            answers[number] = refused(UNREADABLE, "unreadable", str(unreadable))
            continue
        if one.may(conn, NodeCaller(token.node, token.pool), arguments):
            calls[number] = arguments
        else:
            answers[number] = _not_its_own(one, token)
    try:
        replies = one.many(conn, list(calls.values())) if calls else []
    except (StoreError, psycopg.Error):
        return [
            answers.get(number) or operate(conn, token, one.name, body) for number, (token, body) in enumerate(asked)
        ]
    said = {number: NodeAnswer(200, node_wire.encode(reply)) for number, reply in zip(calls, replies, strict=True)}
    return [answers.get(number) or said[number] for number in range(len(asked))]


def _not_its_own(one: NodeOperation, token: NodeToken) -> NodeAnswer:
    log.warning("node_operation_refused", node=token.node, operation=one.name)
    return refused(NOT_ITS_OWN, "not_its_own", f"{token.node} may not do {one.name} with these arguments")


def _done(conn: psycopg.Connection, one: NodeOperation, token: NodeToken, arguments: dict[str, Any]) -> NodeAnswer:
    try:
        if not one.may(conn, NodeCaller(token.node, token.pool), arguments):
            return _not_its_own(one, token)
        known = {name: _as_stored(conn, value) for name, value in arguments.items()}
        given = {name: _GIVEN[name]() for name in one.given}
        return NodeAnswer(200, node_wire.encode(one.function(conn, **known, **given)))
    except StoreError as told:
        return NodeAnswer(409, node_wire.refusal_of(told))
    except (OperationalError, psycopg.OperationalError, PoolTimeout, ProblemError) as away:
        return refused(AWAY, "database_away", str(away))
    except (DatabaseError, psycopg.Error) as error:
        log.warning("node_operation_failed", node=token.node, operation=one.name, error=str(error))
        return refused(500, "database_error", str(error))


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


def refused(status: int, code: str, detail: str) -> NodeAnswer:
    """Say no, with a code for programs."""
    return NodeAnswer(status, json.dumps({"code": code, "detail": detail}).encode(), "application/json")


def refusal(status: int, code: str, detail: str) -> HttpResponse:
    """Say no as a view."""
    said = refused(status, code, detail)
    return HttpResponse(said.body, status=said.status, content_type=said.kind)
