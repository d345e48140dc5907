"""Packages: the list, the form of a build, and one package with its manifest and log. All state is in the URL."""

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse

from flexmarl.contracts.package_manifests import ENDINGS
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.packages import queries as packages
from flexmarl.controlplane.packages.filters import FILTERS, ORDERINGS, SOURCES, STATES
from webui.narrowing import chips, narrowed
from webui.views import package_words as words
from webui.views.base import is_part, page, project_of, projects_of, show

CHIPS = {"state": "State", "source": "Source", "owner": "Built by", "name": "Name is", "archived": "Archived"}
MOST_VERSIONS = 50


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show packages, newest first, narrowed by the address in the words of the API."""
    actor, place = actor_of(request), project_of(request)
    found = packages.listed(actor)
    found = found.filter(project=place) if place else found
    context: dict[str, Any] = {
        "nav": "packages",
        "chips": chips(request.GET, CHIPS),
        "q": request.GET.get("q", ""),
        "states": STATES,
        "sources": [(name, words.SOURCES[name]) for name in SOURCES],
        "asked": {name: request.GET.get(name, "") for name in CHIPS},
        "may_build": actor.may(Scope.PACKAGES_WRITE, place) if place else actor.may(Scope.PACKAGES_WRITE),
        "several": not place and len(projects_of(request)) > 1,
        **narrowed(
            request, found, FILTERS, lambda one: words.row(packages.package_row(one)),
            order=ORDERINGS["-created_at"], unless_asked={"archived": "no"},
        ),
    }  # fmt: skip
    return show(request, "webui/parts/package_rows.html" if is_part(request) else "webui/packages.html", context)


@page(Scope.PACKAGES_WRITE)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form of a build; the address fills it, `from` with what another build asked for."""
    actor = actor_of(request)
    writable = [name for name in projects_of(request) if actor.may(Scope.PACKAGES_WRITE, name)]
    source = _find(request, request.GET["from"]).source if "from" in request.GET else {}
    chosen = request.GET.get("project") or project_of(request)
    context = {
        "nav": "packages",
        "writable": writable,
        "chosen": chosen if chosen in writable else next(iter(writable), ""),
        "given": {
            "type": request.GET.get("type") or source.get("type", "requirement"),
            "requirement": request.GET.get("requirement") or source.get("requirement", ""),
            "entry": request.GET.get("entry") or source.get("entry", ""),
        },
        "endings": ENDINGS,
    }
    return show(request, "webui/build_package.html", context)


@page()
def detail(request: HttpRequest, package_id: UUID) -> HttpResponse:
    """Show a package: how far its build is, what it offers, what was installed, and the log."""
    actor, found = actor_of(request), _find(request, package_id)
    row = packages.package_detail(found)
    context = {
        "nav": "packages",
        "package": words.row(row),
        "phases": words.phases(row),
        "trouble": words.trouble(row) if row["state"] == "failed" else None,
        "environments": words.environments(row),
        "programs": words.programs(row),
        "commands": words.commands(row),
        "servers": words.servers(row),
        "left_out": row["manifest"].get("left_out", []),
        "naming": words.naming(row),
        "versions": [words.row(packages.package_row(one)) for one in packages.versions(actor, found)[:MOST_VERSIONS]],
        "may_change": actor.may(Scope.PACKAGES_WRITE, row["project"]),
        "may_create": actor.may(Scope.RUNS_WRITE, row["project"]),
    }
    return show(request, "webui/parts/package.html" if is_part(request) else "webui/package.html", context)


def _find(request: HttpRequest, reference: object) -> Any:
    try:
        return packages.find_package(actor_of(request), UUID(str(reference)))
    except ValueError:
        raise NotFound("There is no such package.") from None
