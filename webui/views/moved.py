"""What moved each policy's data: rows ready, gradients taken, optimizer steps, versions served, newest first."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.narrowing import address_with
from webui.views.base import page, show
from webui.views.joint import agents_by_policy, step_of
from webui.views.joint_words import TRANSITIONS

LINES = 60
"""Transitions on a page."""


@page()
def transitions_part(request: HttpRequest, key: str) -> HttpResponse:
    """The list of transitions alone."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/transitions.html", {"run": row, **moved(request, found, row)})


def moved(request: HttpRequest, found: Any, row: dict[str, Any]) -> dict[str, Any]:
    """A page of transitions with the filters that chose it."""
    kind, policy, step = request.GET.get("moved", ""), request.GET.get("policy", ""), step_of(request)
    kind = kind if kind in TRANSITIONS else ""
    cohort = None if step is None else step - 1
    wanted = telemetry.TransitionFilter([kind] if kind else (), [policy] if policy else (), cohort)
    try:
        shown, refused = telemetry.transitions(found, wanted, request.GET.get("cursor") or None, LINES), ""
    except ValidationProblem as problem:
        shown, refused = {"results": [], "next": None}, problem.detail
    agents = agents_by_policy(row)
    chosen = {"moved": kind, "policy": policy, "step": "" if step is None else str(step)}
    return {
        "transitions": [
            {**one, "look": TRANSITIONS[one["kind"]], "agent": agents.get(one["policy"])} for one in shown["results"]
        ],
        "transitions_refused": refused,
        "transition_kinds": [(name, look[0]) for name, look in TRANSITIONS.items()],
        "transition_policies": sorted(agents),
        "wanted": chosen,
        "wanted_any": any(chosen.values()),
        "older": address_with(request, cursor=shown["next"]) if shown["next"] else "",
        "held_back": bool(request.GET.get("cursor")),
        "transition_query": urlencode({name: value for name, value in chosen.items() if value}),
    }
