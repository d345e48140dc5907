"""Changes of people and tokens: permission, write, audit."""

from collections.abc import Iterable
from datetime import timedelta
from zoneinfo import available_timezones

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from flexmarl.controlplane.accounts import tokens
from flexmarl.controlplane.accounts.choices import Role, Theme
from flexmarl.controlplane.accounts.models import ApiToken, User
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import (
    DuplicateName,
    FieldError,
    NotFound,
    PermissionDenied,
    ValidationProblem,
)
from flexmarl.controlplane.common.scopes import Scope

DEFAULT_TOKEN_DAYS = 90
MAX_TOKEN_DAYS = 366


@transaction.atomic
def create_first_admin(username: str, password: str) -> User | None:
    """Create an admin when the installation has no active one; None when it has."""
    if User.objects.filter(role=Role.CLUSTER_ADMIN, is_active=True).exists():
        return None
    user = User.objects.create_superuser(username, password=password)
    record(Actor.system("setup"), "user.create", "user", user.id, username, role=str(Role.CLUSTER_ADMIN))
    return user


@transaction.atomic
def create_user(
    actor: Actor,
    username: str,
    password: str,
    role: str = Role.MEMBER,  # type: ignore[assignment] # a str; mypy sees the pair of value and label
    email: str = "",
) -> User:
    """Create a person."""
    actor.require(Scope.USERS_ADMIN)
    if role not in Role.values:
        raise _bad("/role", "unknown_value", f"{role} is not a role.", f"Known: {', '.join(Role.values)}.")
    if User.objects.filter(username=username).exists():
        raise DuplicateName(f"There is a user named {username}.")
    user = User(username=username, email=email, role=role, is_staff=role == Role.CLUSTER_ADMIN)
    try:
        user.username_validator(username)
        validate_password(password, user)
    except ValidationError as error:
        raise _bad("/password", "refused", " ".join(error.messages), "") from error
    user.set_password(password)
    user.save()
    record(actor, "user.create", "user", user.id, username, role=str(role))
    return user


@transaction.atomic
def update_preferences(actor: Actor, *, theme: str | None = None, time_zone: str | None = None) -> User:
    """Change one's own theme and time zone."""
    user = User.objects.select_for_update().get(pk=actor.user_id)
    if theme is not None:
        if theme not in Theme.values:
            raise _bad("/theme", "unknown_value", f"{theme} is not a theme.", f"Known: {', '.join(Theme.values)}.")
        user.theme = theme
    if time_zone is not None:
        if time_zone not in available_timezones():
            raise _bad("/time_zone", "unknown_value", f"{time_zone} is not a time zone.", "For example Europe/Berlin.")
        user.time_zone = time_zone
    user.version += 1
    user.save(update_fields=["theme", "time_zone", "version", "updated_at"])
    record(actor, "user.preferences", "user", user.id, user.username)
    return user


@transaction.atomic
def create_token(
    actor: Actor, name: str, scopes: Iterable[str] | None = None, expires_in_days: int = DEFAULT_TOKEN_DAYS
) -> tuple[ApiToken, str]:
    """Make a token for the caller. Returns it with its text, which cannot be shown again."""
    actor.require(Scope.TOKENS_WRITE)
    if actor.user_id is None:
        raise PermissionDenied("Only a person can own a token.")
    if not 1 <= expires_in_days <= MAX_TOKEN_DAYS:
        raise _bad("/expires_in_days", "out_of_range", f"{expires_in_days} is not between 1 and {MAX_TOKEN_DAYS}.", "")
    wanted = sorted(set(scopes) if scopes is not None else {str(scope) for scope in actor.scopes})
    known = {str(scope) for scope in Scope}
    for index, scope in enumerate(wanted):
        if scope not in known:
            raise _bad(
                f"/scopes/{index}", "unknown_value", f"{scope} is not a scope.", f"Known: {', '.join(sorted(known))}."
            )
        if Scope(scope) not in actor.scopes:
            raise PermissionDenied(f"You do not have the scope {scope} yourself.", extra={"required_scopes": [scope]})
    new = tokens.make()
    token = ApiToken.objects.create(
        owner_id=actor.user_id,
        name=name,
        key=new.key,
        secret_hash=new.secret_hash,
        scopes=wanted,
        expires_at=timezone.now() + timedelta(days=expires_in_days),
    )
    record(actor, "token.create", "token", token.id, name, scopes=wanted)
    return token, new.text


@transaction.atomic
def revoke_token(actor: Actor, token_id: object) -> None:
    """Revoke one's own token, or anybody's as an admin. Revoking twice changes nothing."""
    actor.require(Scope.TOKENS_WRITE)
    token = ApiToken.objects.select_for_update().filter(pk=token_id).first()
    if token is None or (token.owner_id != actor.user_id and not actor.may(Scope.USERS_ADMIN)):
        raise NotFound("There is no such token.")
    if token.revoked_at is None:
        ApiToken.objects.filter(pk=token.pk).update(revoked_at=timezone.now(), version=F("version") + 1)
        record(actor, "token.revoke", "token", token.id, token.name)


def _bad(pointer: str, code: str, detail: str, hint: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(pointer, code, detail, hint)])
