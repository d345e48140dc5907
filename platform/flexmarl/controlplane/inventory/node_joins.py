"""Requests of hosts to join: taken from anybody, within bounds, and decided by administrators.

Invariants: a request is known by the token that its host made, and nobody else hears how it stands. At most
`MOST_WAITING` wait, `MOST_OF_ADDRESS` of them from one address, each for `WAITS`. What was decided is kept for
`KEPT`, so that the host learns of it, and is removed with the next request that comes.
"""

from datetime import timedelta
from uuid import UUID

import structlog
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from flexmarl.contracts.node_joining import NodeJoinAnswer, NodeJoinRequest, confirmation_code
from flexmarl.controlplane.accounts import tokens
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import Conflict, NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import node_tokens
from flexmarl.controlplane.inventory.models import NodeJoin
from flexmarl.controlplane.inventory.node_join_rows import WAITS, current, expires_at

log = structlog.get_logger(__name__)
KEPT = timedelta(days=1)
MOST_WAITING = 50
MOST_OF_ADDRESS = 20
_COUNTING = 0x6E6A6F696E
"""Of the advisory lock under which requests are counted and written."""


class JoiningFull(Exception):
    """As many requests wait as may."""


class KeyTaken(Exception):
    """Another token has this key already; a host that draws another one asks again."""


@transaction.atomic
def ask(key: str, secret: str, asked: NodeJoinRequest, address: str) -> NodeJoinAnswer:
    """Take a request, or say how that of this token stands. Raises ValidationProblem, JoiningFull, KeyTaken."""
    node_tokens.check_name("node", asked.node)
    node_tokens.check_name("pool", asked.pool)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_COUNTING])
    _sweep()
    known = NodeJoin.objects.filter(key=key).first()
    if known is not None:
        if not tokens.matches(secret, known.secret_hash):
            raise KeyTaken
        return _answer(known)
    if node_tokens.is_key_taken(key):
        raise KeyTaken
    waiting = NodeJoin.objects.filter(state=NodeJoin.State.WAITING)
    if waiting.count() >= MOST_WAITING or waiting.filter(address=address).count() >= MOST_OF_ADDRESS:
        raise JoiningFull
    made = NodeJoin.objects.create(
        node=asked.node,
        pool=asked.pool,
        facts=asked.model_dump(include={"host_name", "agent_version", "devices"}),
        address=address,
        code=confirmation_code(f"{node_tokens.PREFIX}{key}.{secret}"),
        key=key,
        secret_hash=tokens.digest(secret),
    )
    log.info("node_asks_to_join", node=made.node, address=address, code=made.code)
    live.announce_on_commit(live.CLUSTER, 0)
    return _answer(made)


def standing(key: str, secret: str) -> NodeJoinAnswer | None:
    """Say how the request of a token stands; None when there is none."""
    found = current().filter(key=key).first()
    return _answer(found) if found is not None and tokens.matches(secret, found.secret_hash) else None


@transaction.atomic
def approve(
    actor: Actor,
    join_id: UUID | str,
    node: str | None = None,
    pool: str | None = None,
    precondition: Precondition = any_version,
) -> NodeJoin:
    """Let a host in, under the names that it asked for or others: the token that it made becomes that node's."""
    join = _waiting(actor, join_id, precondition)
    asked = {"node": join.node, "pool": join.pool}
    join.node, join.pool = asked["node"] if node is None else node, asked["pool"] if pool is None else pool
    node_tokens.admit(actor, join.node, join.pool, join.key, join.secret_hash)
    return _decided(actor, join, NodeJoin.State.APPROVED, "approve", asked)


@transaction.atomic
def reject(actor: Actor, join_id: UUID | str, precondition: Precondition = any_version) -> NodeJoin:
    """Turn a host away; it says so and ends."""
    join = _waiting(actor, join_id, precondition)
    return _decided(actor, join, NodeJoin.State.REJECTED, "reject", {"node": join.node, "pool": join.pool})


def _sweep() -> None:
    now = timezone.now()
    ran_out = Q(state=NodeJoin.State.WAITING, created_at__lte=now - WAITS)
    NodeJoin.objects.filter(ran_out | Q(decided_at__lte=now - KEPT)).delete()


def _answer(join: NodeJoin) -> NodeJoinAnswer:
    waits = join.state == NodeJoin.State.WAITING
    left = (expires_at(join) - timezone.now()).total_seconds() if waits else 0.0
    return NodeJoinAnswer(state=str(join.state), node=join.node, pool=join.pool, expires_in_s=round(max(0.0, left), 1))


def _waiting(actor: Actor, join_id: UUID | str, precondition: Precondition) -> NodeJoin:
    actor.require(Scope.CLUSTER_ADMIN)
    join = NodeJoin.objects.select_for_update().filter(pk=join_id).first()
    if join is None or (join.state == NodeJoin.State.WAITING and expires_at(join) <= timezone.now()):
        raise NotFound("There is no such request, or it has expired. The host asks again when it is told to.")
    precondition(join.version)
    if join.state != NodeJoin.State.WAITING:
        raise Conflict(f"The request of {join.node} is {join.state} already.")
    return join


def _decided(actor: Actor, join: NodeJoin, state: NodeJoin.State, verb: str, asked: dict[str, str]) -> NodeJoin:
    join.state, join.decided_at, join.decided_by_id = state, timezone.now(), actor.user_id
    join.version += 1
    join.save()
    after = {"node": join.node, "pool": join.pool, "address": join.address, "code": join.code}
    record(actor, f"node_join.{verb}", "node_join", join.id, join.node, after=after, asked=asked)
    live.announce_on_commit(live.CLUSTER, 0)
    return join
