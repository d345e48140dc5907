"""The team of a run as a drawing: who hears whom, and who speaks now."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from pydantic import TypeAdapter

from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures.team import TeamGraph, team_graph
from webui.views.base import page, show


def graph_of(row: Mapping[str, Any], words: Mapping[str, str] | None = None) -> TeamGraph:
    """Draw the team of a run in the hues of its agents, with words in the boxes."""
    facts = TypeAdapter(EnvironmentSpec).validate_python(row["spec"]["environment"]).facts()
    return team_graph(facts.roles, {agent["role"]: agent for agent in row["agents"]}, facts.stages, words)


def policies_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Say of each role which policy it plays with, where that has another name."""
    return {
        agent["role"]: "" if agent["policy"] == agent["role"] else f"policy {agent['policy']}"
        for agent in row["agents"]
    }


@page()
def speaking_part(request: HttpRequest, key: str) -> HttpResponse:
    """The drawing with the turns that each seat is asked for now, re-read while the run moves."""
    found = runs.find_run(actor_of(request), key)
    row = runs.run_detail(found)
    return show(request, "webui/parts/speaking.html", {"run": row, **speaking(found, row)})


def speaking(found: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawing, and in words how many episodes wait for whom."""
    told = telemetry.speaking(found)
    words = {seat["role"]: _count(seat) for seat in told["seats"]}
    names = [seat["role"] for seat in told["seats"] if seat["open"]]
    graph = graph_of(row, words)
    if not told["live"]:
        sentence = "The run has ended."
    elif not told["told"]:
        sentence = "No rollout worker has reported in the last seconds."
    elif not names:
        sentence = "Idle: no turn is waiting for a reply."
    else:
        sentence = ", ".join(f"{seat['role']} in {seat['open']}" for seat in told["seats"] if seat["open"])
        sentence = f"Episodes that wait for a reply: {sentence}."
    return {"graph": graph, "sentence": sentence, "speakers": names}


def _count(seat: Mapping[str, Any]) -> str:
    if not seat["open"]:
        return ""
    queued = seat["open"] - seat["in_flight"]
    return f"{seat['in_flight']} at engines, {queued} queued" if queued else f"{seat['in_flight']} at engines"
