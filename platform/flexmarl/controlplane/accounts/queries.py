"""What others read of people: the actor of a request, people, projects and tokens as plain values."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from rest_framework.request import Request

from flexmarl.controlplane.accounts.choices import PROJECT_SCOPES_OF, SCOPES_OF, ProjectRole, Role, UserKind
from flexmarl.controlplane.accounts.models import ApiToken, Membership, Project, User
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.problems import NotFound, Unauthenticated
from flexmarl.controlplane.common.scopes import OF_PROJECTS, Scope
from flexmarl.controlplane.common.times import rfc3339


def actor_of(request: Any) -> Actor:
    """Build the actor of a page's or an API request: the user's scopes, narrowed by the token."""
    user, token = request.user, getattr(request, "auth", None)
    if isinstance(user, AnonymousUser):
        return Actor(None, "anonymous", frozenset(), request_id_of(request))
    return _actor(user, token if isinstance(token, ApiToken) else None, request_id_of(request))


def account_of(request: Request | HttpRequest) -> User:
    """Return the account that a request came with. Raises Unauthenticated without one."""
    if isinstance(request.user, User):
        return request.user
    raise Unauthenticated("This requires a user account.")


def never_signed_in(username: str) -> bool:
    """Tell whether an active account was made and nobody has signed in with it yet."""
    return User.objects.filter(username=username, is_active=True, last_login=None).exists()


def actor_of_user(user: User) -> Actor:
    """Build the actor of a person outside a request."""
    return _actor(user, None, "")


def current_actor(user_id: UUID | str | None, token_id: UUID | str | None = None) -> Actor:
    """Build the actor of a person as they are now, narrowed by a token; one who may do nothing when either is gone."""
    user = User.objects.filter(pk=user_id).first() if user_id else None
    token = ApiToken.objects.filter(pk=token_id).first() if token_id else None
    if user is None or (token_id and (token is None or not token.usable)):
        return Actor(None, "nobody", frozenset())
    return _actor(user, token, "")


def _actor(user: User, token: ApiToken | None, request_id: str) -> Actor:
    everywhere, projects = user.everywhere, user.in_projects
    if token is None:
        return Actor(user.id, user.username, everywhere, request_id, projects)
    everywhere, projects = token.narrow(everywhere, projects)
    return Actor(user.id, user.username, everywhere, request_id, projects, token.limits)


def user_row(user: User) -> dict[str, Any]:
    """Return a person as others see them."""
    return {
        "id": str(user.id),
        "username": user.username,
        "email": user.email,
        "role": user.role,
        "is_active": user.is_active,
        "last_sign_in": rfc3339(user.last_login),
        "created_at": rfc3339(user.date_joined),
        "updated_at": rfc3339(user.updated_at),
        "version": user.version,
        "url": f"/api/v1/users/{user.id}",
        "web_url": "/users",
    }


def me(user: User, actor: Actor) -> dict[str, Any]:
    """Return a caller as they see themselves: with preferences, roles and what they may do now."""
    return {
        **user_row(user),
        "kind": user.kind,
        "theme": user.theme,
        "density": user.density,
        "letter_keys": user.letter_keys,
        "time_zone": user.time_zone,
        "scopes": sorted(str(scope) for scope in actor.scopes),
        "everywhere": sorted(str(scope) for scope in actor.everywhere),
        "projects": [
            {"name": name, "role": user.roles.get(name), "scopes": sorted(str(scope) for scope in held)}
            for name, held in sorted(actor.projects.items())
        ],
    }


def users() -> QuerySet[User]:
    """All people, newest first."""
    return User.objects.filter(kind=UserKind.PERSON).order_by("-id")


def user(user_id: UUID | str) -> User:
    """Return a person. Raises NotFound."""
    found = users().filter(pk=user_id).first()
    if found is None:
        raise NotFound("This user does not exist.")
    return found


def project_names(actor: Actor) -> list[str]:
    """Names of the projects whose runs a caller may see, in order."""
    reach = actor.reach(Scope.RUNS_READ)
    return sorted(Project.objects.values_list("name", flat=True) if reach is None else reach)


def projects(actor: Actor) -> QuerySet[Project]:
    """Projects a caller has any part in; all for those who see all runs, all audit rows or keep people."""
    people = Q(memberships__user__kind=UserKind.PERSON)
    rows = Project.objects.annotate(
        member_count=Count("memberships", filter=people, distinct=True),
        service_account_count=Count("service_accounts", filter=Q(service_accounts__is_active=True), distinct=True),
    )
    if any(scope in actor.everywhere for scope in (Scope.RUNS_READ, Scope.AUDIT_READ, Scope.USERS_ADMIN)):
        return rows
    return rows.filter(name__in=actor.projects)


def find_project(actor: Actor, name: str) -> Project:
    """Return a project the caller has a part in. Raises NotFound."""
    found = projects(actor).filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no project {name}.")
    return found


def project_row(project: Project, actor: Actor) -> dict[str, Any]:
    """Return a project with what the caller may do in it."""
    held = actor.projects.get(project.name, frozenset()) | (actor.everywhere & OF_PROJECTS)
    return {
        "id": str(project.id),
        "name": project.name,
        "description": project.description,
        "weight": project.weight,
        "member_count": getattr(project, "member_count", 0),
        "service_account_count": getattr(project, "service_account_count", 0),
        "scopes": sorted(str(scope) for scope in held),
        "created_at": rfc3339(project.created_at),
        "updated_at": rfc3339(project.updated_at),
        "version": project.version,
        "url": f"/api/v1/projects/{project.name}",
        "web_url": f"/members?project={project.name}",
    }


def members(project: str) -> QuerySet[Membership]:
    """People of a project by name; service accounts are listed apart."""
    found = Membership.objects.select_related("user", "project").filter(project__name=project)
    return found.filter(user__kind=UserKind.PERSON).order_by("user__username")


def member(project: str, user_id: UUID | str) -> Membership:
    """Return a member. Raises NotFound."""
    found = members(project).filter(user_id=user_id).first()
    if found is None:
        raise NotFound(f"{project} has no such member.")
    return found


def member_row(member: Membership) -> dict[str, Any]:
    """Return a member with their role."""
    return {
        "user_id": str(member.user_id),
        "username": member.user.username,
        "is_active": member.user.is_active,
        "project": member.project.name,
        "role": member.role,
        "created_at": rfc3339(member.created_at),
        "updated_at": rfc3339(member.updated_at),
        "version": member.version,
        "url": f"/api/v1/projects/{member.project.name}/members/{member.user_id}",
        "web_url": f"/members?project={member.project.name}",
    }


def project_admins(names: Iterable[str]) -> dict[str, list[str]]:
    """Who can give roles in each project: names of its active admins."""
    rows = Membership.objects.filter(
        project__name__in=list(names), role=ProjectRole.ADMIN, user__is_active=True, user__kind=UserKind.PERSON
    )
    found: dict[str, list[str]] = {}
    for project, username in rows.order_by("user__username").values_list("project__name", "user__username"):
        found.setdefault(project, []).append(username)
    return found


def cluster_admins() -> list[str]:
    """Names of the active cluster admins."""
    return list(
        users().filter(role=Role.CLUSTER_ADMIN, is_active=True).order_by("username").values_list("username", flat=True)
    )


def roles_with(scope: Scope) -> list[str]:
    """Words of the roles that hold a scope, project roles first, the smallest first."""
    found = [word for role, word in ProjectRole.choices if scope in PROJECT_SCOPES_OF[role]]
    return found + [word for role, word in Role.choices if scope in SCOPES_OF[role]]


def service_accounts(project: str) -> QuerySet[User]:
    """Service accounts of a project by name, with their role in it."""
    found = User.objects.filter(kind=UserKind.SERVICE, project_id=project).prefetch_related("memberships")
    return found.annotate(token_count=Count("tokens", filter=Q(tokens__revoked_at=None))).order_by("username")


def service_account(project: str, user_id: UUID | str) -> User:
    """Return a service account of a project. Raises NotFound."""
    found = service_accounts(project).filter(pk=user_id).first()
    if found is None:
        raise NotFound(f"{project} has no such service account.")
    return found


def service_account_row(account: User) -> dict[str, Any]:
    """Return a service account with its role."""
    url = f"/api/v1/projects/{account.project_id}/service-accounts/{account.id}"
    return {
        "id": str(account.id),
        "name": account.username,
        "project": account.project_id,
        "role": next((member.role for member in account.memberships.all()), None),
        "is_active": account.is_active,
        "token_count": getattr(account, "token_count", 0),
        "created_at": rfc3339(account.date_joined),
        "updated_at": rfc3339(account.updated_at),
        "version": account.version,
        "url": url,
        "web_url": f"/service-accounts?project={account.project_id}",
    }


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """The tokens of a person or service account, newest first."""
    return ApiToken.objects.select_related("owner", "created_by").filter(owner=user)


def tokens_kept_by(actor: Actor) -> QuerySet[ApiToken]:
    """Tokens a caller may read and revoke: their own, those of service accounts they keep, as an admin all."""
    rows = ApiToken.objects.select_related("owner", "created_by")
    if actor.may(Scope.USERS_ADMIN):
        return rows
    kept = actor.reach(Scope.PROJECTS_ADMIN)
    of_projects = Q(owner__kind=UserKind.SERVICE) if kept is None else Q(owner__project_id__in=kept)
    return rows.filter(Q(owner_id=actor.user_id) | of_projects)


def token_row(token: ApiToken) -> dict[str, Any]:
    """Return a token without its secret."""
    return {
        "id": str(token.id),
        "name": token.name,
        "key": f"fmx_{token.key}",
        "owner": token.owner.username,
        "created_by": token.created_by.username if token.created_by else None,
        "scopes": token.scopes,
        "projects": token.projects,
        "networks": token.networks,
        "state": "revoked" if token.revoked_at else "active" if token.usable else "expired",
        "created_at": rfc3339(token.created_at),
        "updated_at": rfc3339(token.updated_at),
        "expires_at": rfc3339(token.expires_at),
        "revoked_at": rfc3339(token.revoked_at),
        "last_used_at": rfc3339(token.last_used_at),
        "version": token.version,
        "url": f"/api/v1/tokens/{token.id}",
        "web_url": "/settings/tokens",
    }
