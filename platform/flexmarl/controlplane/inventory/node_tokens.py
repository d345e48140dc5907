"""Changes of node tokens, and the check of one. Administrators make, rotate and revoke them.

Invariants: nodes with tokens share no pool with nodes that have the installation's secrets. The token of a provider's
job is made anew from the job's id whenever it is asked for, so that a submission which is repeated says the same; it
is revoked once its job has ended, before the name of its node is given to another.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from flexmarl.contracts.node_joining import NAME, NAME_RULE
from flexmarl.controlplane.accounts import tokens
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import Conflict, FieldError, NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory.models import Node, NodeToken

PREFIX = "fmn_"
OVERLAP_MINUTES = 60
MOST_OVERLAP_MINUTES = 7 * 24 * 60
_USED_RESOLUTION = timedelta(minutes=1)
_REMEMBERED = timedelta(days=30)
"""So long the revoked token of a job stays in the list."""


class TokenRefused(Exception):
    """A caller has no token of a node that holds now; the text says what is wrong with it."""


_UNKNOWN = "the node token is missing, unknown or was replaced"


def check(header: str) -> NodeToken:
    """Return the token that an Authorization header names. Raises TokenRefused."""
    (found,) = check_all([header])
    if isinstance(found, TokenRefused):
        raise found
    return found


def check_all(headers: Sequence[str]) -> list[NodeToken | TokenRefused]:
    """Return the token that each Authorization header names, or why there is none; in two statements at most."""
    pairs = [pair(header) for header in headers]
    rows = NodeToken.objects.filter(key__in={named[0] for named in pairs if named})
    known = {token.key: token for token in rows}
    found = [_standing(known.get(named[0]), named[1]) if named else TokenRefused(_UNKNOWN) for named in pairs]
    now = timezone.now()
    long_ago = now - _USED_RESOLUTION
    held = [token for token in found if isinstance(token, NodeToken)]
    if used := [token.pk for token in held if token.last_used_at is None or token.last_used_at < long_ago]:
        NodeToken.objects.filter(pk__in=used).update(last_used_at=now)
    return found


def pair(header: str) -> tuple[str, str] | None:
    """Return (key, secret) of the token that an Authorization header names, None when it names none."""
    scheme, _, text = header.partition(" ")
    return tokens.split(text, PREFIX) if scheme.lower() == "bearer" else None


def _standing(token: NodeToken | None, secret: str) -> NodeToken | TokenRefused:
    if token is None or not _matches(token, secret):
        return TokenRefused(_UNKNOWN)
    return token if token.revoked_at is None else TokenRefused(f"the node token of {token.node} is revoked")


def _matches(token: NodeToken, secret: str) -> bool:
    if tokens.matches(secret, token.secret_hash):
        return True
    former = token.former_until is not None and timezone.now() < token.former_until
    return former and tokens.matches(secret, token.former_hash)


def is_key_taken(key: str) -> bool:
    """Tell whether a token with this public part was made before, revoked or not."""
    return NodeToken.objects.filter(key=key).exists()


@transaction.atomic
def create(actor: Actor, node: str, pool: str) -> tuple[NodeToken, str]:
    """Make the token of a node. Returns it with its text, which cannot be shown again."""
    new = tokens.make(PREFIX)
    return admit(actor, node, pool, new.key, new.secret_hash), new.text


@transaction.atomic
def admit(actor: Actor, node: str, pool: str, key: str, secret_hash: str, job: UUID | None = None) -> NodeToken:
    """Let a node in with a token that somebody has made, of which only the hash is known; `job`: for a job's host."""
    actor.require(Scope.CLUSTER_ADMIN)
    check_name("node", node)
    check_name("pool", pool)
    if NodeToken.objects.filter(node=node, revoked_at=None).exists():
        raise Conflict(f"{node} has a token already. Rotate or revoke that one, or choose another name.")
    if _with_secrets(Node.objects.filter(name=node)).exists():
        raise Conflict(f"{node} is a node with the installation's secrets. Choose another name.")
    if _with_secrets(Node.objects.filter(devices__pool=pool)).exists():
        raise Conflict(
            f"Nodes with the installation's secrets have devices in {pool}. Nodes with tokens have pools of their own."
        )
    token = NodeToken.objects.create(
        node=node, pool=pool, created_by_id=actor.user_id, key=key, secret_hash=secret_hash, job=job
    )
    _written(actor, "create", token)
    return token


def _with_secrets(nodes: QuerySet[Node]) -> QuerySet[Node]:
    """Keep the nodes that have the installation's secrets; hosts of providers whose jobs have ended are gone."""
    return nodes.exclude(address="").exclude(state="gone")


@transaction.atomic
def for_job(actor: Actor, job: UUID, node: str, pool: str) -> str:
    """Return the text of the token of a job's host, the same every time. Raises Conflict where there can be none."""
    new = tokens.derive(PREFIX, f"the node token of job {job}")
    found = NodeToken.objects.filter(key=new.key).first()
    if found is None:
        admit(actor, node, pool, new.key, new.secret_hash, job)
    elif found.revoked_at is not None:
        raise Conflict(f"The token of {node} is revoked. Cancel its job; another one gets a token of its own.")
    return new.text


def is_revoked(job: UUID) -> bool:
    """Tell whether the token of a job's host was revoked."""
    return NodeToken.objects.filter(job=job, revoked_at__isnull=False).exists()


@transaction.atomic
def revoke_ended(actor: Actor, jobs: Collection[UUID]) -> None:
    """Revoke the tokens of all jobs but these, which have not ended; those that were revoked long ago are forgotten."""
    ended = NodeToken.objects.select_for_update().filter(revoked_at=None, job__isnull=False).exclude(job__in=jobs)
    if found := list(ended):
        for token in found:
            _revoke(actor, token)
        NodeToken.objects.filter(job__isnull=False, revoked_at__lt=timezone.now() - _REMEMBERED).delete()


@transaction.atomic
def rotate(
    actor: Actor, token_id: UUID | str, overlap_minutes: int = OVERLAP_MINUTES, precondition: Precondition = any_version
) -> tuple[NodeToken, str]:
    """Give a token another secret; the former one holds for `overlap_minutes` more. Returns it with its text."""
    token = _kept(actor, token_id, precondition)
    if token.revoked_at is not None:
        raise Conflict(f"The token of {token.node} is revoked. Create another one.")
    if token.job is not None:
        raise Conflict(
            f"The token of {token.node} is its job's and ends with it. Revoke it to end the host, or cancel the job."
        )
    if not 0 <= overlap_minutes <= MOST_OVERLAP_MINUTES:
        detail = f"{overlap_minutes} is not between 0 and {MOST_OVERLAP_MINUTES}."
        raise _bad("/overlap_minutes", "out_of_range", detail, f"The default is {OVERLAP_MINUTES}.")
    secret, now = tokens.new_secret(), timezone.now()
    token.former_hash, token.former_until = token.secret_hash, now + timedelta(minutes=overlap_minutes)
    token.secret_hash, token.rotated_at, token.version = tokens.digest(secret), now, token.version + 1
    token.save()
    _written(actor, "rotate", token)
    return token, f"{PREFIX}{token.key}.{secret}"


@transaction.atomic
def revoke(actor: Actor, token_id: UUID | str, precondition: Precondition = any_version) -> None:
    """Revoke a token for good; its node stops within seconds. Revoking twice changes nothing."""
    token = _kept(actor, token_id, precondition)
    if token.revoked_at is None:
        _revoke(actor, token)


def _revoke(actor: Actor, token: NodeToken) -> None:
    token.revoked_at, token.version = timezone.now(), token.version + 1
    token.save()
    _written(actor, "revoke", token)


def _kept(actor: Actor, token_id: UUID | str, precondition: Precondition) -> NodeToken:
    actor.require(Scope.CLUSTER_ADMIN)
    token = NodeToken.objects.select_for_update().filter(pk=token_id).first()
    if token is None:
        raise NotFound("There is no such node token.")
    precondition(token.version)
    return token


def _written(actor: Actor, verb: str, token: NodeToken) -> None:
    after = {"node": token.node, "pool": token.pool, **({"job": str(token.job)} if token.job else {})}
    record(actor, f"node_token.{verb}", "node_token", token.id, token.node, after=after)
    live.announce_on_commit(live.CLUSTER, 0)


def check_name(member: str, name: str) -> None:
    """Raises ValidationProblem for what is no name of a node or pool."""
    if not NAME.fullmatch(name):
        detail = f"{name!r} is not a name: {NAME_RULE}."
        raise _bad(f"/{member}", "invalid", detail, "Such as trainer-1.")


def _bad(pointer: str, code: str, detail: str, hint: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(pointer, code, detail, hint)])
