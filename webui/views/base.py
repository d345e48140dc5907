"""What every page needs: who is asking, the frame's context, and refusals as pages.

A page and its live part may share an address: the part is asked for with `X-Part`. `page` is the one place that keeps
browsers from showing one for the other: a part is never stored, and a stored page is only used for a page.
"""

import contextlib
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

import psycopg
from django.core.exceptions import DisallowedHost
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import patch_cache_control, patch_vary_headers

from flexmarl.controlplane.accounts.queries import actor_of, project_names
from flexmarl.controlplane.common import database
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.api.exceptions import InternalError, plain_problem, speaks_problems
from flexmarl.controlplane.common.api.parsers import is_safe
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.problems import BadHost, NotFound, PermissionDenied, ProblemError, QueryTimeout
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import machine
from webui import grants, navigation

View = Callable[..., HttpResponse]


class NavItem(NamedTuple):
    """A page in the side bar. `scope`: only for those who hold it somewhere."""

    key: str
    icon: str
    word: str
    route: str
    scope: Scope | None = None
    phone: bool = False
    short: str = ""
    """The word in the bottom bar of phones, when the long one does not fit."""


NAV: tuple[tuple[str, tuple[NavItem, ...]], ...] = (
    (
        "",
        (
            NavItem("home", "home", "Home", "webui:home", Scope.RUNS_READ, True),
            NavItem("runs", "list-details", "Runs", "webui:runs", Scope.RUNS_READ, True),
            NavItem("experiments", "list-check", "Experiments", "webui:experiments", Scope.RUNS_READ),
            NavItem("models", "stack-2", "Models", "webui:models", Scope.RUNS_READ),
            NavItem("datasets", "database", "Datasets", "webui:datasets", Scope.RUNS_READ),
            NavItem("packages", "box", "Packages", "webui:packages", Scope.RUNS_READ),
            NavItem("agent_definitions", "users-group", "Agents", "webui:agent_definitions", Scope.RUNS_READ),
            NavItem("teams", "route", "Teams", "webui:teams", Scope.RUNS_READ),
            NavItem("evaluations", "list-check", "Evaluations", "webui:evaluations", Scope.RUNS_READ),
            NavItem("simulations", "chart-dots", "Simulations", "webui:simulations", Scope.RUNS_READ),
        ),
    ),
    (
        "Cluster",
        (
            NavItem("queue", "hourglass", "Queue", "webui:queue", Scope.CLUSTER_READ, True),
            NavItem("cluster", "server-2", "Pools and nodes", "webui:cluster", Scope.CLUSTER_READ, True, "Cluster"),
            NavItem("cluster_timeline", "chart-bar", "Timeline", "webui:cluster_timeline", Scope.CLUSTER_READ),
        ),
    ),
    (
        "Automation",
        (
            NavItem("tokens", "key", "Tokens", "webui:tokens", Scope.TOKENS_WRITE),
            NavItem("serving_keys", "api", "Serving keys", "webui:serving_keys", Scope.MODELS_USE),
        ),
    ),
    (
        "Admin",
        (
            NavItem("members", "users", "Members", "webui:members", Scope.CLUSTER_READ),
            NavItem("projects", "folders", "Projects", "webui:projects", Scope.USERS_ADMIN),
            NavItem("users", "user-cog", "Users", "webui:users", Scope.USERS_ADMIN),
            NavItem("storage", "database", "Storage", "webui:storage", Scope.CLUSTER_ADMIN),
            NavItem("audit", "history", "Audit", "webui:audit", Scope.AUDIT_READ),
        ),
    ),
)
"""(heading, pages) of each group of the side bar; only pages that exist are listed. A phone shows those marked in its
bottom bar, the others under More."""

ALL_PROJECTS = "all"
"""What `?project=` says for all of them."""


def page(scope: Scope | None = Scope.RUNS_READ) -> Callable[[View], View]:
    """Ask for a signed-in person with a scope (None: anybody signed in), and show refusals as pages."""

    def decorate(view: View) -> View:
        @wraps(view)
        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            return _kept_apart(request, answer(request, *args, **kwargs))

        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not request.user.is_authenticated:
                return _sign_in_first(request)
            with timezone.override(ZoneInfo(request.user.time_zone)):
                try:
                    if not all(is_safe(value) for value in kwargs.values() if isinstance(value, str)):
                        raise NotFound("The address contains invalid characters.")
                    if scope is not None:
                        actor_of(request).require(scope)
                    return view(request, *args, **kwargs)
                except ProblemError as problem:
                    return refused(request, problem)
                except (OperationalError, psycopg.OperationalError) as error:
                    timed_out = database.problem_of(error)
                    if not isinstance(timed_out, QueryTimeout):
                        raise  # no page can be read from a database that does not answer
                    return refused(request, timed_out)

        inner.scope = scope  # type: ignore[attr-defined] # the permission matrix is checked against it
        return inner

    return decorate


def is_part(request: HttpRequest) -> bool:
    """Say whether a script asks for a part of a page or for data, not a person for a page."""
    return bool(request.headers.get("X-Part") == "1")


def _kept_apart(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Keep a part out of every cache; without it Back and Forward show the part in place of its page."""
    patch_vary_headers(response, ["X-Part"])
    patch_cache_control(response, private=True)
    if is_part(request):
        patch_cache_control(response, no_store=True)
    return response


def _sign_in_first(request: HttpRequest) -> HttpResponse:
    if is_part(request):
        return HttpResponse(status=401)
    return HttpResponseRedirect(f"{reverse('webui:sign_in')}?next={quote(request.get_full_path())}")


def show(request: HttpRequest, template: str, context: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
    """Render a page or a part with the frame's context."""
    return render(request, template, {**frame(request), **(context or {})}, status=status)


def frame(request: HttpRequest) -> dict[str, Any]:
    """What the frame around every page shows."""
    actor = actor_of(request)
    return {
        "nav_groups": nav_groups(actor),
        "project": chosen_project(request),
        "projects": projects_of(request),
        "may_create": actor.may(Scope.RUNS_WRITE),
        "switch_url": _switch_url(request),
        "now": timezone.localtime(),
        "theme": getattr(request.user, "theme", "system"),
        "request_id": request_id_of(request),
        "notices": machine.notices(),
        **navigation.around(request),
    }


def nav_groups(actor: Actor) -> list[tuple[str, list[NavItem]]]:
    """The side bar of an actor: pages that answer, by their groups."""
    nav = [(head, [item for item in items if item.scope is None or actor.may(item.scope)]) for head, items in NAV]
    return [(head, items) for head, items in nav if items]


def projects_of(request: HttpRequest) -> list[str]:
    """Names of the projects whose runs the caller may see; read once per request."""
    if not hasattr(request, "project_names"):
        request.project_names = project_names(actor_of(request))  # type: ignore[attr-defined]
    return request.project_names  # type: ignore[attr-defined,no-any-return]


def project_of(request: HttpRequest) -> str:
    """Name of the project that pages are narrowed to, "" for all of them.

    `?project=NAME` chooses and is remembered for the session, `?project=all` lifts the choice. Who has one project is
    always in it. Raises NotFound for a project the caller has no part in.
    """
    names, asked = projects_of(request), request.GET.get("project")
    if asked is not None:
        if asked not in {ALL_PROJECTS, *names}:
            raise NotFound(f"There is no project {asked}, or you are not a member of it.")
        if request.session.get("project", ALL_PROJECTS) != asked:
            request.session["project"] = asked
    chosen = asked or request.session.get("project", ALL_PROJECTS)
    if len(names) == 1:
        return names[0]
    return chosen if chosen in names else ""


def chosen_project(request: HttpRequest) -> str:
    """Like `project_of`, for the frame of pages that refuse: never raises."""
    try:
        return project_of(request)
    except ProblemError:
        return ""


def _switch_url(request: HttpRequest) -> str:
    """Where choosing another project leads: this page when it is a list, else the runs of that project."""
    at = getattr(request.resolver_match, "view_name", "")
    listed = {item.route for _, items in NAV for item in items}
    return request.path if at in listed else reverse("webui:runs")


NO_PROJECT = -1
"""In place of a status: 403 for who has no part in any project, and so lacks what everybody in one may."""
DOORS = 2
"""Pages that an error leads to: the first ones of the side bar."""

_WORDS = {
    403: ("Access denied", "lock", "Your role does not allow it."),
    NO_PROJECT: (
        "You are not a member of a project yet",
        "folders",
        "Runs, simulations and checkpoints belong to projects. Ask an admin for a role in one to see what is in it.",
    ),
    404: ("Page not found", "map-off", "The address may be mistyped, or the page was removed."),
    500: (
        "Internal error",
        "alert-circle",
        "Your runs are not affected. Try again; if the error persists, report the request id.",
    ),
}


def refused(request: HttpRequest, problem: ProblemError) -> HttpResponse:
    """Show a refusal as a page, or as a problem when a script asked."""
    if is_part(request):
        body = {"title": problem.title, "detail": problem.detail, "request_id": request_id_of(request)}
        return JsonResponse(body, status=problem.status)
    missing = grants.missing(request, problem.extra.get("required_scopes", []))
    return error_page(request, problem.status, problem.detail, missing)


def error_page(
    request: HttpRequest, status: int, detail: str = "", missing: dict[str, Any] | None = None
) -> HttpResponse:
    """Show what failed, what to do, and the request id."""
    outside = status == 403 and bool(missing) and not projects_of(request)
    title, icon, help_text = _WORDS.get(NO_PROJECT if outside else status, _WORDS[500])
    context = {
        "title": title,
        "icon": icon,
        "detail": "" if outside else detail,
        "doors": [item for _, items in nav_groups(actor_of(request)) for item in items][:DOORS],
        "help_text": help_text,
        "status": status,
        "missing": missing,
    }
    return show(request, "webui/error.html", context, status=status)


def whole_number(request: HttpRequest, name: str, default: int | None = None) -> int | None:
    """Read a whole number from the query; a wrong one is as good as none."""
    text = request.GET.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else default


_BAD_REQUEST = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>Bad request – FlexMARL</title>
<main><h1>This request cannot be answered</h1>
<p>Open FlexMARL under one of its own addresses. An administrator sets them with FLEXMARL_ALLOWED_HOSTS.</p></main>
</html>
"""


def bad_request_error(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Handle a request that is refused before anybody knows who sends it, such as one with a wrong Host."""
    if speaks_problems(request):
        hint = "Send the Host of this installation; an administrator sets it with FLEXMARL_ALLOWED_HOSTS."
        return plain_problem(request, BadHost(hint) if isinstance(exception, DisallowedHost) else ProblemError())
    return HttpResponse(_BAD_REQUEST, status=400)


def csrf_error(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Handle an unsafe request of a browser without the form's token."""
    if speaks_problems(request):
        return plain_problem(request, PermissionDenied(f"The CSRF token is missing or wrong: {reason}"))
    return error_page(request, 403, "The form is too old, or was not sent from here. Load the page again.")


def not_found_error(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Handle an address without a page."""
    return refused(request, NotFound(f"There is no page at {request.path}."))


def forbidden_error(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Handle a refused request, such as a form without its token."""
    return error_page(request, 403)


def server_error(request: HttpRequest) -> HttpResponse:
    """Handle a failure outside of the API's views; one of the database is said without it."""
    if speaks_problems(request):
        return plain_problem(request, InternalError("An internal error occurred. Search the logs for the request id."))
    if not isinstance(sys.exc_info()[1], OperationalError):
        with contextlib.suppress(OperationalError):
            return error_page(request, 500)
    context = {"notices": machine.notices(), "request_id": request_id_of(request)}
    return HttpResponse(render_to_string("webui/unavailable.html", context), status=503, headers={"Retry-After": "5"})
