"""What other settings would do for a run: ask, and read the newest answer."""

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.simulations import queries as simulations
from flexmarl.controlplane.simulations import what_if
from webui.views import simulation_words as words
from webui.views.base import is_part, page, show
from webui.views.run import run_frame

SHOWN = 10
"""Former answers that are listed."""


@page()
def panel(request: HttpRequest, key: str) -> HttpResponse:
    """Show the newest advice of a run, the former ones, and the form."""
    context = run_frame(request, key, "what_if")
    run, actor = context["found"], actor_of(request)
    asked = simulations.simulations(actor).filter(run=run, kind="what_if")
    rows = [words.row(simulations.simulation_row(one)) for one in asked[:SHOWN]]
    newest = next((row for row in rows if row["state"] == "done"), None)
    told = simulations.simulation_detail(simulations.find_simulation(actor, newest["id"])) if newest else None
    context |= {
        "rows": rows,
        "newest": newest,
        "told": words.told(told["result"]) if told else None,
        "going": next((row for row in rows if row["open"]), None),
        "offered": what_if.offered(run),
        "may_ask": actor.may(Scope.RUNS_WRITE, run.project_id),
        "least_steps": what_if.LEAST_STEPS,
    }
    return show(request, "webui/parts/what_if.html" if is_part(request) else "webui/run_what_if.html", context)
