"""Changes of node tokens, and the check of one. Administrators make, rotate and revoke them."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from flexmarl.contracts.node_joining import NAME, NAME_RULE
from flexmarl.controlplane.accounts import tokens
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import Conflict, FieldError, NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory.models import Device, Node, NodeToken

PREFIX = "fmn_"
OVERLAP_MINUTES = 60
MOST_OVERLAP_MINUTES = 7 * 24 * 60
_USED_RESOLUTION = timedelta(minutes=1)


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
def admit(actor: Actor, node: str, pool: str, key: str, secret_hash: str) -> NodeToken:
    """Let a node in with a token that somebody has made, of which only the hash is known."""
    actor.require(Scope.CLUSTER_ADMIN)
    check_name("node", node)
    check_name("pool", pool)
    held = NodeToken.objects.filter(Q(node=node) | Q(pool=pool), revoked_at=None).first()
    if held is not None:
        what = f"{node} has a token" if held.node == node else f"{pool} is the pool of the token of {held.node}"
        raise Conflict(f"{what} already. Rotate or revoke that one, or choose another name.")
    if Node.objects.filter(name=node).exclude(address="").exists():
        raise Conflict(f"{node} is a node with the installation's secrets. Choose another name.")
    if Device.objects.filter(pool=pool).exclude(node=node).exists():
        raise Conflict(f"Other nodes have devices in {pool}. A node with a token has a pool of its own.")
    token = NodeToken.objects.create(
        node=node, pool=pool, created_by_id=actor.user_id, key=key, secret_hash=secret_hash
    )
    _written(actor, "create", token)
    return token


@transaction.atomic
def rotate(
    actor: Actor, token_id: UUID | str, overlap_minutes: int = OVERLAP_MINUTES, precondition: Precondition = any_version
) -> tuple[NodeToken, str]:
    """Give a token another secret; the former one holds for `overlap_minutes` more. Returns it with its text."""
    token = _kept(actor, token_id, precondition)
    if token.revoked_at is not None:
        raise Conflict(f"The token of {token.node} is revoked. Create another one.")
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
    after = {"node": token.node, "pool": token.pool}
    record(actor, f"node_token.{verb}", "node_token", token.id, token.node, after=after)
    live.announce_on_commit(live.CLUSTER, 0)


def check_name(member: str, name: str) -> None:
    """Raises ValidationProblem for what is no name of a node or pool."""
    if not NAME.fullmatch(name):
        detail = f"{name!r} is not a name: {NAME_RULE}."
        raise _bad(f"/{member}", "invalid", detail, "Such as trainer-1.")


def _bad(pointer: str, code: str, detail: str, hint: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(pointer, code, detail, hint)])
