"""What is read of hosts that ask to join: by administrators alone."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.inventory.models import NodeJoin

WAITS = timedelta(hours=1)
"""A request that nobody has decided for so long counts no more."""


def expires_at(join: NodeJoin) -> datetime:
    """Say until when a request waits."""
    return join.created_at + WAITS


def current() -> QuerySet[NodeJoin]:
    """The requests that wait or were decided lately, newest first."""
    waits = Q(state=NodeJoin.State.WAITING, created_at__gt=timezone.now() - WAITS)
    return NodeJoin.objects.filter(waits | ~Q(state=NodeJoin.State.WAITING)).select_related("decided_by")


def node_joins(actor: Actor) -> QuerySet[NodeJoin]:
    """The requests that an administrator sees."""
    actor.require(Scope.CLUSTER_ADMIN)
    return current()


def node_join_of(actor: Actor, join_id: UUID | str) -> NodeJoin:
    """Return a request. Raises NotFound for one that has expired, too."""
    found = node_joins(actor).filter(pk=join_id).first()
    if found is None:
        raise NotFound("There is no such request to join, or it has expired.")
    return found


def waiting(actor: Actor) -> list[dict[str, Any]]:
    """Return the requests that wait, those that came first first; none for who is no administrator."""
    if not actor.may(Scope.CLUSTER_ADMIN):
        return []
    return [join_row(one) for one in node_joins(actor).filter(state=NodeJoin.State.WAITING).order_by("id")]


def join_row(join: NodeJoin) -> dict[str, Any]:
    """Return a request as a plain value."""
    return {
        "id": str(join.id),
        "node": join.node,
        "pool": join.pool,
        "host_name": join.facts["host_name"],
        "agent_version": join.facts["agent_version"],
        "devices": join.facts["devices"],
        "address": join.address,
        "code": join.code,
        "state": str(join.state),
        "created_at": rfc3339(join.created_at),
        "expires_at": rfc3339(expires_at(join)) if join.state == NodeJoin.State.WAITING else None,
        "decided_by": join.decided_by.username if join.decided_by else None,
        "decided_at": rfc3339(join.decided_at),
        "version": join.version,
        "url": f"/api/v1/node-joins/{join.id}",
        "web_url": f"/cluster?join={join.id}",
    }
