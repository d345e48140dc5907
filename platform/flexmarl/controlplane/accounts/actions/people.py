"""Changes of people. There is always an active cluster admin; passwords are in no audit row."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID
from zoneinfo import available_timezones

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from flexmarl.controlplane.accounts import tokens
from flexmarl.controlplane.accounts.actions.refusals import bad, require_known
from flexmarl.controlplane.accounts.choices import Density, ProjectRole, Role, Theme, UserKind
from flexmarl.controlplane.accounts.models import Membership, Project, User
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import Conflict, DuplicateName, NotFound, PermissionDenied
from flexmarl.controlplane.common.scopes import Scope


@transaction.atomic
def create_first_admin(username: str, password: str) -> User | None:
    """Create an admin when the installation has no active one; None when it has."""
    if User.objects.filter(role=Role.CLUSTER_ADMIN, is_active=True).exists():
        return None
    user = User.objects.create_superuser(username, password=password)
    record(Actor.system("setup"), "user.create", "user", user.id, username, after={"role": str(Role.CLUSTER_ADMIN)})
    return user


@transaction.atomic
def create_user(
    actor: Actor,
    username: str,
    password: str,
    role: str = Role.MEMBER,
    email: str = "",
    memberships: Iterable[Mapping[str, str]] = (),
) -> User:
    """Create a person, with roles in projects: `memberships` has `project` and `role` of each."""
    actor.require(Scope.USERS_ADMIN)
    require_known(role, Role.values, "/role", "a role")
    user = User(username=username, email=email, role=role, is_staff=role == Role.CLUSTER_ADMIN)
    check_name(user)
    set_password(user, password)
    user.save()
    roles = {}
    for index, given in enumerate(memberships):
        project = Project.objects.filter(name=given["project"]).first()
        if project is None:
            raise bad(f"/memberships/{index}/project", "unknown_value", f"Project {given['project']} does not exist.")
        require_known(given["role"], ProjectRole.values, f"/memberships/{index}/role", "a role in a project")
        if project.name in roles:
            raise bad(f"/memberships/{index}/project", "repeated", f"{project.name} is named twice.")
        Membership.objects.create(user=user, project=project, role=given["role"])
        roles[project.name] = str(given["role"])
    record(actor, "user.create", "user", user.id, username, after={"role": str(role), "projects": roles})
    return user


@transaction.atomic
def update_user(
    actor: Actor, user_id: UUID | str, changes: Mapping[str, Any], precondition: Precondition = any_version
) -> User:
    """Change a person's `role`, `is_active` or `email`. The last active cluster admin stays one."""
    actor.require(Scope.USERS_ADMIN)
    admins = set(_active_admins())
    user = _person(user_id)
    precondition(user.version)
    if "role" in changes:
        require_known(changes["role"], Role.values, "/role", "a role")
    before = _facts(user)
    for name in ("role", "is_active", "email"):
        setattr(user, name, changes.get(name, getattr(user, name)))
    is_admin = user.role == Role.CLUSTER_ADMIN and user.is_active
    if admins == {user.id} and not is_admin:
        raise Conflict("This is the last active cluster admin. Appoint another one first.")
    user.is_staff = user.role == Role.CLUSTER_ADMIN
    user.is_superuser = user.is_superuser and user.is_staff
    if (after := _facts(user)) != before:
        user.version += 1
        user.save()
        record(actor, "user.update", "user", user.id, user.username, before=before, after=after)
    return user


@transaction.atomic
def reset_password(actor: Actor, user_id: UUID | str) -> tuple[User, str]:
    """Give a person a new password, which is returned and stored nowhere. Ends their sessions."""
    actor.require(Scope.USERS_ADMIN)
    user, password = _person(user_id), tokens.new_password()
    user.set_password(password)
    user.version += 1
    user.save(update_fields=["password", "version", "updated_at"])
    record(actor, "user.reset_password", "user", user.id, user.username)
    return user, password


@transaction.atomic
def change_own_password(actor: Actor, current: str, new: str) -> User:
    """Change one's own password, at a browser alone: a token must not outlive its owner's distrust."""
    if actor.user_id is None or actor.limits is not None:
        raise PermissionDenied("Only its owner can change a password, signed in with a browser.")
    user = User.objects.select_for_update().get(pk=actor.person)
    if not user.check_password(current):
        raise bad("/current", "wrong", "This is not your current password.")
    set_password(user, new, "/new")
    user.version += 1
    user.save(update_fields=["password", "version", "updated_at"])
    record(actor, "user.change_password", "user", user.id, user.username)
    return user


@transaction.atomic
def update_preferences(actor: Actor, **changes: Any) -> User:
    """Change one's own theme, density, time zone, or whether single letters act as keys."""
    user = User.objects.select_for_update().get(pk=actor.person)
    for name, legal, what in (("theme", Theme.values, "a theme"), ("density", Density.values, "a density")):
        if name in changes:
            require_known(changes[name], legal, f"/{name}", what)
    zone = changes.get("time_zone")
    if zone is not None and zone not in available_timezones():
        raise bad("/time_zone", "unknown_value", f"{zone} is not a time zone.", "For example Europe/Berlin.")
    names = ("theme", "density", "time_zone", "letter_keys")
    before = {name: getattr(user, name) for name in names}
    for name in names:
        setattr(user, name, changes.get(name, before[name]))
    after = {name: getattr(user, name) for name in names}
    if after != before:
        user.version += 1
        user.save(update_fields=[*names, "version", "updated_at"])
        record(actor, "user.preferences", "user", user.id, user.username, before=before, after=after)
    return user


def check_name(user: User) -> None:
    """Refuse a name that is taken or not legal."""
    if User.objects.filter(username=user.username).exists():
        raise DuplicateName(f"There is a user named {user.username}.")
    try:
        user.username_validator(user.username)
    except ValidationError as error:
        raise bad("/username", "refused", " ".join(error.messages)) from error


def set_password(user: User, password: str, pointer: str = "/password") -> None:
    """Set a password that is good enough."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise bad(pointer, "refused", " ".join(error.messages)) from error
    user.set_password(password)


def _person(user_id: UUID | str) -> User:
    user = User.objects.select_for_update().filter(pk=user_id, kind=UserKind.PERSON).first()
    if user is None:
        raise NotFound("This user does not exist.")
    return user


def _active_admins() -> Iterable[object]:
    """Ids of them, locked in one order, so that two admins cannot demote each other at once."""
    rows = User.objects.select_for_update().filter(role=Role.CLUSTER_ADMIN, is_active=True, kind=UserKind.PERSON)
    return [user.id for user in rows.order_by("id")]


def _facts(user: User) -> dict[str, Any]:
    return {"role": str(user.role), "is_active": user.is_active, "email": user.email}
