"""Changes of tokens. A token never exceeds who makes it: neither in scopes, projects, networks nor in time."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from flexmarl.controlplane.accounts import rights, tokens
from flexmarl.controlplane.accounts.actions.projects import locked_project
from flexmarl.controlplane.accounts.actions.refusals import bad
from flexmarl.controlplane.accounts.actions.services import find_service_account
from flexmarl.controlplane.accounts.models import ApiToken, User
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor, TokenLimits
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import Conflict, NotFound, PermissionDenied
from flexmarl.controlplane.common.scopes import Scope

DEFAULT_TOKEN_DAYS = 90
MAX_TOKEN_DAYS = 366
MOST_NETWORKS = 32


@transaction.atomic
def create_token(
    actor: Actor,
    name: str,
    scopes: Iterable[str] | None = None,
    expires_in_days: int = DEFAULT_TOKEN_DAYS,
    projects: Iterable[str] = (),
    networks: Iterable[str] = (),
    service_account: tuple[str, UUID | str] | None = None,
) -> tuple[ApiToken, str]:
    """Make a token for the caller, or for a (project, service account) they keep.

    Returns it with its text, which cannot be shown again. Without scopes it gets all that its owner has.
    """
    owner, held = _owner(actor, service_account)
    if not 1 <= expires_in_days <= MAX_TOKEN_DAYS:
        raise bad("/expires_in_days", "out_of_range", f"{expires_in_days} is not between 1 and {MAX_TOKEN_DAYS}.")
    limits = actor.limits or TokenLimits()
    wanted = _scopes(scopes, held)
    within = _projects(actor, list(projects), owner, limits)
    ranges = _networks(list(networks), limits)
    new = tokens.make()
    token = ApiToken.objects.create(
        owner=owner,
        created_by_id=actor.user_id,
        name=name,
        key=new.key,
        secret_hash=new.secret_hash,
        scopes=wanted,
        projects=within,
        networks=ranges,
        expires_at=_end(expires_in_days, limits),
    )
    after = {"scopes": wanted, "projects": within, "networks": ranges, "owner": owner.username}
    record(actor, "token.create", "token", token.id, name, project=owner.project_id or "", after=after)
    return token, new.text


@transaction.atomic
def rename_token(actor: Actor, token_id: UUID | str, name: str, precondition: Precondition = any_version) -> ApiToken:
    """Change a token's name."""
    token = find_token(actor, token_id)
    precondition(token.version)
    before = {"name": token.name}
    if name != token.name:
        token.name, token.version = name, token.version + 1
        token.save(update_fields=["name", "version", "updated_at"])
        project = token.owner.project_id or ""
        record(actor, "token.update", "token", token.id, name, project=project, before=before, after={"name": name})
    return token


@transaction.atomic
def revoke_token(actor: Actor, token_id: UUID | str, precondition: Precondition = any_version) -> None:
    """Revoke a token one keeps. Revoking twice changes nothing."""
    token = find_token(actor, token_id)
    precondition(token.version)
    if token.revoked_at is None:
        ApiToken.objects.filter(pk=token.pk).update(revoked_at=timezone.now(), version=F("version") + 1)
        rights.changed(token.owner_id)
        record(actor, "token.revoke", "token", token.id, token.name, project=token.owner.project_id or "")


def find_token(actor: Actor, token_id: UUID | str) -> ApiToken:
    """Return a token the caller keeps, locked: their own, one of a service account they keep, or any as an admin."""
    actor.require(Scope.TOKENS_WRITE)
    found = ApiToken.objects.select_for_update(of=("self",)).select_related("owner").filter(pk=token_id)
    token = found.first()
    if token is None or not _keeps(actor, token.owner):
        raise NotFound("This token does not exist.")
    return token


def _keeps(actor: Actor, owner: User) -> bool:
    if owner.id == actor.user_id or actor.may(Scope.USERS_ADMIN):
        return True
    return owner.is_service and actor.may(Scope.PROJECTS_ADMIN, owner.project_id)


def _owner(actor: Actor, service_account: tuple[str, UUID | str] | None) -> tuple[User, frozenset[Scope]]:
    """Who will own the token, and the scopes it can have at most."""
    actor.require(Scope.TOKENS_WRITE)
    if service_account is not None:
        locked_project(actor, service_account[0])
        user = find_service_account(*service_account)
        if not user.is_active:
            raise Conflict(f"{user.username} is inactive. Activate it first.")
        return user, user.everywhere.union(*user.in_projects.values()) & actor.scopes
    if actor.user_id is None:
        raise PermissionDenied("Only a person or a service account can own a token.")
    return User.objects.get(pk=actor.user_id), actor.scopes


def _scopes(scopes: Iterable[str] | None, held: frozenset[Scope]) -> list[str]:
    wanted = sorted(set(scopes) if scopes is not None else {str(scope) for scope in held})
    known = {str(scope) for scope in Scope}
    for index, scope in enumerate(wanted):
        if scope not in known:
            hint = f"Known: {', '.join(sorted(known))}."
            raise bad(f"/scopes/{index}", "unknown_value", f"{scope} is not a scope.", hint)
        if Scope(scope) not in held:
            raise PermissionDenied(
                f"The owner of the token does not have the scope {scope}.", extra={"required_scopes": [scope]}
            )
    return wanted


def _projects(actor: Actor, projects: list[str], owner: User, limits: TokenLimits) -> list[str]:
    """Projects of the new token: those asked for, else those of the token it is made with."""
    for index, name in enumerate(projects):
        inside = not limits.projects or name in limits.projects
        theirs = name == owner.project_id if owner.is_service else actor.may(Scope.RUNS_READ, name)
        if not inside or not theirs:
            hint = "Use projects of which its owner is a member."
            raise bad(f"/projects/{index}", "unknown_value", f"There is no project {name} for this token.", hint)
    return sorted(set(projects)) or sorted(limits.projects)


def _networks(texts: list[str], limits: TokenLimits) -> list[str]:
    if len(texts) > MOST_NETWORKS:
        raise bad("/networks", "too_many", f"At most {MOST_NETWORKS} ranges.")
    outer = [ip_network(text) for text in limits.networks]
    found = []
    for index, text in enumerate(texts):
        try:
            network = ip_network(text.strip())
        except ValueError as error:
            hint = "For example 10.0.0.0/8 or 2001:db8::/32."
            raise bad(f"/networks/{index}", "refused", f"{text} is not an address range: {error}.", hint) from None
        if outer and not any(_inside(network, one) for one in outer):
            hint = f"This token may be used from {', '.join(limits.networks)}."
            raise bad(
                f"/networks/{index}", "out_of_range", f"{text} exceeds the limits of the token that creates it.", hint
            )
        found.append(str(network))
    return found or list(limits.networks)


def _inside(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    if isinstance(inner, IPv4Network) and isinstance(outer, IPv4Network):
        return inner.subnet_of(outer)
    return isinstance(inner, IPv6Network) and isinstance(outer, IPv6Network) and inner.subnet_of(outer)


def _end(days: int, limits: TokenLimits) -> datetime:
    end = timezone.now() + timedelta(days=days)
    return end if limits.until is None else min(end, limits.until)
