"""Simulations: the list, the form of a new one, and what one came to. All of their state is in the URL."""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.simulations import queries as simulations
from flexmarl.controlplane.simulations import recorded_load
from flexmarl.controlplane.simulations.filters import FILTERS, STATES
from flexmarl.controlplane.simulations.requests import MOST_SEEDS, MOST_STEPS
from flexmarl.controlplane.simulations.what_if import LEAST_STEPS
from webui.figures import simulated
from webui.narrowing import chips, link_with, narrowed
from webui.views import simulation_words as words
from webui.views.base import is_part, page, project_of, show
from webui.views.simulation_export import csv_of

PAGE = 50
USUAL = ("bounded_async", "colocated", "flexmarl", "one_step_off", "sync")
"""Presets that a new simulation begins with: one of each kind, so that it takes seconds."""
CHIPS = {
    "kind": "Kind",
    "state": "State",
    "workload": "Workload",
    "run": "Run",
    "owner": "Requested by",
    "preset": "Preset",
}


@page()
def listing(request: HttpRequest) -> HttpResponse:
    """Show simulations, newest first, narrowed by the address in the words of the API."""
    context: dict[str, Any] = {"nav": "simulations", "chips": _chips(request), "q": request.GET.get("q", "")}
    context["states"] = STATES
    context |= {"presets": [row["name"] for row in experiments.presets()], "workloads": simulations.workloads()}
    context |= {"asked": {name: request.GET.get(name, "") for name in CHIPS}, **_rows(request)}
    context["may_ask"] = actor_of(request).may(Scope.RUNS_WRITE)
    return show(request, "webui/parts/simulation_rows.html" if is_part(request) else "webui/simulations.html", context)


def _chips(request: HttpRequest) -> list[dict[str, str]]:
    return [{**chip, "value": chip["value"].replace("_", " ")} for chip in chips(request.GET, CHIPS)]


def _rows(request: HttpRequest) -> dict[str, Any]:
    rows, place = simulations.simulations(actor_of(request)), project_of(request)
    rows = rows.filter(project_id=place) if place else rows
    return narrowed(request, rows, FILTERS, lambda one: words.row(simulations.simulation_row(one)))


@page(Scope.RUNS_WRITE)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form; the address fills it, `from` with what another simulation asked for."""
    given = _given(request)
    chosen = given["presets"] or USUAL
    presets = [{**row, "on": row["name"] in chosen} for row in experiments.presets()]
    names = [one["name"] for one in simulations.workloads()]
    lent = _lent(request, given["run"])
    given["run"] = given["run"] if given["run"] in [one["key"] for one in lent] else ""
    known = given["workload"] if given["workload"] in names else names[0]
    context = {
        "nav": "simulations",
        "given": given | {"workload": "" if given["run"] else known},
        "presets": presets,
        "workloads": simulations.workloads(),
        "lent": lent,
        "least_steps": LEAST_STEPS,
        "most_steps": MOST_STEPS,
        "most_seeds": MOST_SEEDS,
        "into": project_of(request) or "default",
    }
    return show(request, "webui/new_simulation.html", context)


def _lent(request: HttpRequest, asked: str) -> list[dict[str, Any]]:
    """The runs whose recorded load may be played: those that ended of late, and the one that the address names."""
    actor = actor_of(request)
    found = recorded_load.offered(actor, project_of(request) or "")
    if asked and asked not in [one["key"] for one in found]:
        found += recorded_load.offered(actor, key=asked)
    return found


def _given(request: HttpRequest) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if source := request.GET.get("from"):
        asked = words.as_asked(_find(request, source).request)
    for name in ("workload", "run", "steps", "warm_up", "seeds", "name"):
        if request.GET.get(name):
            asked[name] = request.GET[name]
    if request.GET.getlist("preset"):
        asked["presets"] = request.GET.getlist("preset")
    if request.GET.getlist("change"):
        asked["changes"] = request.GET.getlist("change")
    plain = {"workload": "", "run": "", "name": "", "presets": [], "changes": [], "steps": 8, "warm_up": 1, "seeds": 3}
    return plain | asked


@page()
def detail(request: HttpRequest, simulation_id: UUID) -> HttpResponse:
    """Show how far a simulation is and what it came to."""
    found = _find(request, simulation_id)
    row = simulations.simulation_detail(found)
    result, shown = row["result"] or {}, _shown(request, found)
    heads = [{**head, "url": link_with(request, ordering=head["ordering"])} for head in words.heads(_ordering(request))]
    context = {
        "nav": "simulations",
        "simulation": words.row(row),
        "may_change": simulations.may_change(actor_of(request), found),
        "asked": words.asked(row),
        "refused": row["request"].get("refused", []),
        "table": words.table(dict(shown), _ordering(request)),
        "heads": heads,
        "choices": [
            {"name": name, "on": name in dict(shown)} for name, _ in words.ordered(result.get("presets", {}), "")
        ],
        "ordering": request.GET.get("ordering", ""),
        "all_url": link_with(request, show=""),
        "csv_url": f"{request.path}/figures.csv{link_with(request)}",
        "of": _chosen(request, found),
        "lines": [{"name": name, "url": link_with(request, of=name)} for name in _lines(request, found)],
        "again_url": f"/simulations/new?{urlencode({'from': row['id']})}",
        "next_step": words.next_step(row),
        "told": words.told(row["result"]),
        "record": words.record(result["record"]) if "record" in result else None,
        "meanings": words.MEANINGS,
        "causes": words.CAUSE_WORDS,
    }
    return show(request, "webui/parts/simulation.html" if is_part(request) else "webui/simulation.html", context)


@page()
def figures(request: HttpRequest, simulation_id: UUID) -> JsonResponse:
    """Answer the charts of a simulation."""
    found = _find(request, simulation_id)
    presets = _shown(request, found)
    made = simulated.charts(presets) if presets else {}
    of = _chosen(request, found)
    if of:
        line = simulations.timeline(found, of)
        made["devices"] = simulated.devices(line, words.hues(line))
    return JsonResponse({"figures": made, "version": found.version})


@page()
def export(request: HttpRequest, simulation_id: UUID) -> HttpResponse:
    """Answer the figures of every seed as a file, of the presets that are shown."""
    found = _find(request, simulation_id)
    answer = HttpResponse(csv_of(_shown(request, found)), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="simulation-{found.id}.csv"'
    return answer


def _chosen(request: HttpRequest, found: Any) -> str:
    """The preset whose devices are drawn: the first of the table, unless the address names another."""
    lines = _lines(request, found)
    asked = request.GET.get("of", "")
    return asked if asked in lines else next(iter(lines), "")


def _lines(request: HttpRequest, found: Any) -> list[str]:
    """The presets whose devices may be drawn, in the order of the table."""
    return [name for name, _ in _shown(request, found) if name in (found.timelines or {})]


def _shown(request: HttpRequest, found: Any) -> list[tuple[str, Any]]:
    """The presets that the address asks for, all of them when it names none, in its order."""
    rows = words.ordered((found.result or {}).get("presets", {}), _ordering(request))
    asked = set(request.GET.getlist("show"))
    return [row for row in rows if row[0] in asked] or rows


def _ordering(request: HttpRequest) -> str:
    return request.GET.get("ordering", "")


def _find(request: HttpRequest, reference: object) -> Any:
    try:
        return simulations.find_simulation(actor_of(request), UUID(str(reference)))
    except ValueError:
        raise NotFound("Simulation not found.") from None
