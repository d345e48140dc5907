"""Changes of service accounts: callers that belong to one project, act through tokens alone and cannot sign in."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from flexmarl.controlplane.accounts.actions.people import check_name
from flexmarl.controlplane.accounts.actions.projects import locked_project
from flexmarl.controlplane.accounts.actions.refusals import require_known
from flexmarl.controlplane.accounts.choices import SERVICE_ROLES, UserKind
from flexmarl.controlplane.accounts.models import ApiToken, Membership, User
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import NotFound


@transaction.atomic
def create_service_account(actor: Actor, project: str, name: str, role: str) -> User:
    """Create a service account with a role in its project."""
    home = locked_project(actor, project)
    require_known(role, SERVICE_ROLES, "/role", "a role for a service account")
    user = User(username=name, kind=UserKind.SERVICE, project=home)
    check_name(user)
    user.set_unusable_password()
    user.save()
    Membership.objects.create(user=user, project=home, role=role)
    record(actor, "service_account.create", "service_account", user.id, name, project=project, after={"role": role})
    return user


@transaction.atomic
def update_service_account(
    actor: Actor,
    project: str,
    user_id: UUID | str,
    changes: Mapping[str, Any],
    precondition: Precondition = any_version,
) -> User:
    """Change its `role`, or switch it off and on with `is_active`. Switched off, its tokens are revoked for good."""
    home = locked_project(actor, project)
    user = find_service_account(project, user_id)
    precondition(user.version)
    member = Membership.objects.get(user=user, project=home)
    if "role" in changes:
        require_known(changes["role"], SERVICE_ROLES, "/role", "a role for a service account")
    before = {"role": str(member.role), "is_active": user.is_active}
    after = {name: changes.get(name, before[name]) for name in before}
    if after == before:
        return user
    member.role, user.is_active, user.version = after["role"], after["is_active"], user.version + 1
    member.save(update_fields=["role", "updated_at"])
    user.save(update_fields=["is_active", "version", "updated_at"])
    if not user.is_active:
        ApiToken.objects.filter(owner=user, revoked_at=None).update(revoked_at=timezone.now())
    user.__dict__.pop("roles", None)  # read again: the role may be another
    record(
        actor, "service_account.update", "service_account", user.id, user.username, project=project,
        before=before, after=after,
    )  # fmt: skip
    return user


def find_service_account(project: str, user_id: UUID | str) -> User:
    """Return a service account of a project."""
    found = User.objects.select_for_update(of=("self",)).filter(pk=user_id, kind=UserKind.SERVICE, project_id=project)
    user = found.first()
    if user is None:
        raise NotFound(f"{project} has no such service account.")
    return user
