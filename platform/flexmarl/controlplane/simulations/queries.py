"""What others read of simulations, as plain values: rows, the detail, workloads to choose from."""

from functools import cache
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import OPEN
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.simulator.scenarios.library import load_workloads


def simulations(actor: Actor) -> QuerySet[Simulation]:
    """The simulations of projects that the caller may read runs of, newest first, without what is wide."""
    rows = Simulation.objects.select_related("owner", "run").defer(
        "result", "timelines", "run__spec", "run__sources", "run__note"
    )
    return in_reach(rows, actor, Scope.RUNS_READ)


def find_simulation(actor: Actor, reference: UUID) -> Simulation:
    """Return a simulation with its result. Raises NotFound, also when the caller may not know of it."""
    found = simulations(actor).defer(None).defer("timelines").filter(pk=reference).first()
    if found is None:
        raise NotFound("This simulation does not exist.")
    return found


def may_change(actor: Actor, simulation: Simulation) -> bool:
    """Say whether a caller may cancel and delete a simulation."""
    own = simulation.owner_id is not None and simulation.owner_id == actor.user_id
    project = simulation.project_id
    return actor.may(Scope.RUNS_ACT_ANY, project) or (own and actor.may(Scope.RUNS_WRITE, project))


def allowed_actions(simulation: Simulation) -> list[str]:
    """List what its state allows."""
    return ["cancel"] if simulation.state in OPEN else ["delete"]


def simulation_row(simulation: Simulation) -> dict[str, Any]:
    """Return a simulation as a row of a list."""
    return {
        "id": str(simulation.id),
        "kind": simulation.kind,
        "name": simulation.name,
        "project": simulation.project_id,
        "owner": simulation.owner.username if simulation.owner else None,
        "run": simulation.run.key if simulation.run else None,
        "workload": simulation.workload,
        "presets": list(simulation.request.get("presets", [])),
        "state": simulation.state,
        "reason": simulation.reason,
        "reason_text": simulation.reason_text,
        "progress": {"done": simulation.done, "total": simulation.total, "now": simulation.now_at},
        "allowed_actions": allowed_actions(simulation),
        "created_at": rfc3339(simulation.created_at),
        "started_at": rfc3339(simulation.started_at),
        "finished_at": rfc3339(simulation.finished_at),
        "url": f"/api/v1/simulations/{simulation.id}",
        "web_url": f"/simulations/{simulation.id}",
    }


def simulation_detail(simulation: Simulation) -> dict[str, Any]:
    """Return a simulation with what was asked and what it came to; `result` is null until it is done."""
    return {**simulation_row(simulation), "request": simulation.request, "result": simulation.result}


def timeline(simulation: Simulation, name: str) -> dict[str, Any]:
    """Return what every device did under one preset or alternative. Raises NotFound naming those there are."""
    all_of = simulation.timelines or {}
    if name not in all_of:
        there = f"There are: {', '.join(all_of)}." if all_of else "It has none yet."
        raise NotFound(f"There is no timeline of {name or 'nothing'}. {there}")
    return {"name": name, **all_of[name]}


@cache
def workloads() -> tuple[dict[str, Any], ...]:
    """All built-in workloads."""
    return tuple(
        {
            "name": one.name,
            "title": one.title,
            "description": one.description,
            "source": one.source,
            "scenario": one.scenario,
            "url": "/api/v1/workloads",
        }
        for one in load_workloads().values()
    )
