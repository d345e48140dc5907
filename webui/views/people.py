"""Members and service accounts of a project, all projects, all people. Their forms act through the REST API."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts import queries as accounts
from flexmarl.controlplane.accounts.choices import PROJECT_SCOPES_OF, SERVICE_ROLES, ProjectRole, Role
from flexmarl.controlplane.common.scopes import WORDS, Scope
from webui.grants import named
from webui.views.base import page, project_of, show

MOST_ROWS = 500
ROLE_WORDS = {
    str(ProjectRole.VIEWER): "Reads runs and trajectories",
    str(ProjectRole.EDITOR): "Creates runs and controls their own",
    str(ProjectRole.OPERATOR): "Controls all runs",
    str(ProjectRole.ADMIN): "Manages members and service accounts, reads the audit log",
}
PROJECT_ROLES = [(role, word, ROLE_WORDS[role]) for role, word in ProjectRole.choices]
SERVICE_CHOICES = [row for row in PROJECT_ROLES if row[0] in SERVICE_ROLES]
USER_WORDS = {
    str(Role.MEMBER): "Permissions on runs come from project roles",
    str(Role.AUDITOR): "Reads the audit log only",
    str(Role.CLUSTER_ADMIN): "Full access to every project",
}
USER_ROLES = [(role, word, USER_WORDS[role]) for role, word in Role.choices]


@page(Scope.CLUSTER_READ)
def members(request: HttpRequest) -> HttpResponse:
    """Show who is what in the chosen project; without a choice, the projects to choose from."""
    place = project_of(request)
    if not place:
        return choose_project(request, "members", "Members", "webui:members")
    actor = accounts.actor_of(request)
    wanted = request.GET.get("q", "").strip()
    rows = accounts.members(place)
    found = rows.filter(user__username__icontains=wanted) if wanted else rows
    context = {
        "nav": "members",
        "place": accounts.project_row(accounts.find_project(actor, place), actor),
        "rows": [accounts.member_row(row) for row in found[:MOST_ROWS]],
        "total": rows.count(),
        "q": wanted,
        "roles": PROJECT_ROLES,
        "keeps": actor.may(Scope.PROJECTS_ADMIN, place),
        "granters": _granters(place),
    }
    return show(request, "webui/members.html", context)


@page(Scope.CLUSTER_READ)
def service_accounts(request: HttpRequest) -> HttpResponse:
    """Show the service accounts of the chosen project with their tokens."""
    place = project_of(request)
    if not place:
        return choose_project(request, "members", "Service accounts", "webui:service_accounts")
    actor = accounts.actor_of(request)
    keeps = actor.may(Scope.PROJECTS_ADMIN, place)
    found = list(accounts.service_accounts(place)[:MOST_ROWS]) if keeps else []
    tokens: dict[Any, list[dict[str, Any]]] = {}
    for token in accounts.tokens_kept_by(actor).filter(owner__in=found, revoked_at=None).order_by("-id"):
        tokens.setdefault(token.owner_id, []).append(accounts.token_row(token))
    context = {
        "nav": "members",
        "place": accounts.project_row(accounts.find_project(actor, place), actor),
        "rows": [{**accounts.service_account_row(one), "tokens": tokens.get(one.id, [])} for one in found],
        "roles": SERVICE_CHOICES,
        "scopes": scope_rows(PROJECT_SCOPES_OF[str(ProjectRole.OPERATOR)] | {Scope.CLUSTER_READ}),
        "keeps": keeps,
        "granters": _granters(place),
        "origin": f"{request.scheme}://{request.get_host()}",
    }
    return show(request, "webui/service_accounts.html", context)


def choose_project(request: HttpRequest, nav: str, title: str, route: str) -> HttpResponse:
    """Show the caller's projects, for pages that are about one of them."""
    actor = accounts.actor_of(request)
    rows = [accounts.project_row(row, actor) for row in accounts.projects(actor).order_by("name")[:MOST_ROWS]]
    roles = request.user.roles if request.user.is_authenticated else {}
    context = {
        "nav": nav,
        "title": title,
        "route": route,
        "rows": [{**row, "role": roles.get(row["name"])} for row in rows],
    }
    return show(request, "webui/choose_project.html", {**context, "granters": named(accounts.cluster_admins())})


@page(Scope.USERS_ADMIN)
def projects(request: HttpRequest) -> HttpResponse:
    """Show all projects with their admins."""
    actor = accounts.actor_of(request)
    rows = [accounts.project_row(row, actor) for row in accounts.projects(actor).order_by("name")[:MOST_ROWS]]
    admins = accounts.project_admins(row["name"] for row in rows)
    context = {"nav": "projects", "rows": [{**row, "admins": named(admins.get(row["name"], []))} for row in rows]}
    return show(request, "webui/projects.html", context)


@page(Scope.USERS_ADMIN)
def users(request: HttpRequest) -> HttpResponse:
    """Show all people with their installation role and projects."""
    wanted, role, state = (request.GET.get(name, "").strip() for name in ("q", "role", "state"))
    found = accounts.users().order_by("username").prefetch_related("memberships__project")
    total = found.count()
    if wanted:
        found = found.filter(username__icontains=wanted)
    if role in Role.values:
        found = found.filter(role=role)
    if state in ("active", "off"):
        found = found.filter(is_active=state == "active")
    rows = [{**accounts.user_row(user), "places": _places(user)} for user in found[:MOST_ROWS]]
    context = {
        "nav": "users",
        "rows": rows,
        "total": total,
        "q": wanted,
        "role": role,
        "state": state,
        "roles": USER_ROLES,
        "project_roles": PROJECT_ROLES,
        "all_projects": accounts.project_names(accounts.actor_of(request)),
    }
    return show(request, "webui/users.html", context)


def scope_rows(scopes: Any) -> list[tuple[str, str]]:
    """Scopes with their words, in the order of the API."""
    return [(str(scope), WORDS[scope]) for scope in Scope if scope in scopes]


def _places(user: Any) -> list[tuple[str, str]]:
    return sorted((one.project.name, one.get_role_display()) for one in user.memberships.all())


def _granters(place: str) -> str:
    return named(accounts.project_admins([place]).get(place, []) or accounts.cluster_admins())
