"""Changes of projects and of who is what in them.

A project is deleted only when nothing belongs to it. Its admins cannot leave it without an admin; somebody who keeps
people of the whole installation can, since they can also repair it.
"""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import transaction
from django.db.models import ProtectedError

from flexmarl.controlplane.accounts.actions.refusals import bad, require_known
from flexmarl.controlplane.accounts.choices import ProjectRole, UserKind
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Membership, Project, User
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import Conflict, DuplicateName, NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import pool_rules

RESERVED = ("all",)
"""Names that mean something else in the address of a page."""
WEIGHTS = (0.1, 100.0)
"""Both ends are legal: a project of the least weight still gets a thousandth of the largest one's part."""


@transaction.atomic
def create_project(actor: Actor, name: str, description: str = "") -> Project:
    """Create a project. Its name never changes."""
    actor.require(Scope.USERS_ADMIN)
    try:
        validate_slug(name)
    except ValidationError as error:
        raise bad("/name", "refused", " ".join(error.messages), "For example math-team.") from error
    if name in RESERVED:
        raise bad("/name", "reserved", f"{name} is not a valid project name.", "For example math-team.")
    if Project.objects.filter(name=name).exists():
        raise DuplicateName(f"There is a project named {name}.")
    project = Project.objects.create(name=name, description=description)
    record(actor, "project.create", "project", project.id, name, project=name, after={"description": description})
    return project


@transaction.atomic
def update_project(
    actor: Actor, name: str, changes: Mapping[str, Any], precondition: Precondition = any_version
) -> Project:
    """Change a project's `description` or `weight`. The weight concerns other projects too: cluster admins set it."""
    project = locked_project(actor, name)
    precondition(project.version)
    if "weight" in changes:
        actor.require(Scope.CLUSTER_ADMIN)
        _require_weight(changes["weight"])
    before = {field: getattr(project, field) for field in changes}
    after = {field: value for field, value in changes.items() if value != before[field]}
    if not after:
        return project
    for field, value in after.items():
        setattr(project, field, value)
    project.version += 1
    project.save(update_fields=[*after, "version", "updated_at"])
    if "weight" in after:
        pool_rules.set_weight(store_connection(), name, project.weight)
    before = {field: before[field] for field in after}
    record(actor, "project.update", "project", project.id, name, project=name, before=before, after=after)
    return project


def _require_weight(weight: float) -> None:
    least, most = WEIGHTS
    if not least <= weight <= most:  # no number compares as outside too
        detail = f"weight must be between {least:g} and {most:g}; it is {weight:g}."
        raise bad("/weight", "out_of_range", detail, "The default is 1.")


@transaction.atomic
def delete_project(actor: Actor, name: str, precondition: Precondition = any_version) -> None:
    """Delete a project to which nothing belongs any more; memberships go with it."""
    actor.require(Scope.USERS_ADMIN)
    project = locked_project(actor, name)
    precondition(project.version)
    if name == DEFAULT_PROJECT:
        raise Conflict("The default project cannot be deleted: runs without a project belong to it.")
    before = {"description": project.description}
    try:
        project.delete()
    except ProtectedError as error:
        kinds = sorted({str(row._meta.verbose_name_plural) for row in error.protected_objects})
        raise Conflict(f"The project still has {', '.join(kinds)}.") from None
    pool_rules.forget_project(store_connection(), name)
    record(actor, "project.delete", "project", project.id, name, project=name, before=before)


@transaction.atomic
def add_member(actor: Actor, name: str, username: str, role: str) -> Membership:
    """Give a person a role in a project."""
    project = locked_project(actor, name)
    require_known(role, ProjectRole.values, "/role", "a role in a project")
    user = User.objects.filter(username=username, kind=UserKind.PERSON).first()
    if user is None:
        raise bad("/username", "unknown_value", f"User {username} does not exist.", "Names are case-sensitive.")
    if Membership.objects.filter(project=project, user=user).exists():
        raise Conflict(f"{username} is a member of {name} already. Change the role instead.")
    member = Membership.objects.create(project=project, user=user, role=role)
    record(actor, "member.add", "member", user.id, username, project=name, after={"role": str(role)})
    return member


@transaction.atomic
def change_member(
    actor: Actor, name: str, user_id: object, role: str, precondition: Precondition = any_version
) -> Membership:
    """Change a member's role."""
    require_known(role, ProjectRole.values, "/role", "a role in a project")
    project = locked_project(actor, name)
    member = _member(project, user_id)
    precondition(member.version)
    if member.role == role:
        return member
    _keep_an_admin(actor, member)
    before, member.role, member.version = {"role": str(member.role)}, role, member.version + 1
    member.save(update_fields=["role", "version", "updated_at"])
    after = {"role": str(role)}
    record(actor, "member.update", "member", user_id, member.user.username, project=name, before=before, after=after)
    return member


@transaction.atomic
def remove_member(actor: Actor, name: str, user_id: object, precondition: Precondition = any_version) -> None:
    """Take a person out of a project. Their runs stay."""
    project = locked_project(actor, name)
    member = _member(project, user_id)
    precondition(member.version)
    _keep_an_admin(actor, member)
    member.delete()
    before = {"role": str(member.role)}
    record(actor, "member.remove", "member", user_id, member.user.username, project=name, before=before)


def locked_project(actor: Actor, name: str) -> Project:
    """Return a project the caller keeps, locked: changes of it and of its members come one after the other."""
    project = Project.objects.select_for_update().filter(name=name).first()
    if project is None or not (actor.may(Scope.PROJECTS_ADMIN, name) or actor.may(Scope.RUNS_READ, name)):
        raise NotFound(f"There is no project {name}.")
    actor.require(Scope.PROJECTS_ADMIN, name)
    return project


def _member(project: Project, user_id: Any) -> Membership:
    found = Membership.objects.select_related("user").filter(project=project, user_id=user_id)
    member = found.filter(user__kind=UserKind.PERSON).first()
    if member is None:
        raise NotFound(f"{project.name} has no such member.")
    return member


def _keep_an_admin(actor: Actor, member: Membership) -> None:
    if member.role != ProjectRole.ADMIN or actor.may(Scope.USERS_ADMIN):
        return
    others = Membership.objects.filter(project=member.project, role=ProjectRole.ADMIN, user__is_active=True)
    if not others.exclude(pk=member.pk).exists():
        raise Conflict("This is the last project admin. Appoint another one first, or ask a cluster admin.")
