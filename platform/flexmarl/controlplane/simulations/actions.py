"""Changes of simulations: permission, check, write, audit. What is played is played by `manage.py simulations`."""

from django.db import transaction
from django.utils import timezone

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import OPEN, WorkState
from flexmarl.controlplane.common.problems import FieldError, InvalidState, PermissionDenied, RateLimited
from flexmarl.controlplane.common.problems import ValidationProblem as Invalid
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.simulations import queries
from flexmarl.controlplane.simulations.choices import SimulationKind
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.controlplane.simulations.requests import Comparison, checked

MOST_OPEN = 20
"""Simulations of a project that wait or are played."""


@transaction.atomic
def create_comparison(
    actor: Actor, wish: Comparison, *, name: str = "", project: str = DEFAULT_PROJECT, leave_out: bool = False
) -> Simulation:
    """Ask for a comparison. Raises ValidationProblem with every refusal, by preset."""
    actor.require(Scope.RUNS_WRITE, project)
    made = checked(wish, leave_out=leave_out)
    simulation = Simulation(
        kind=SimulationKind.COMPARISON,
        name=name or f"{made.workload}: {', '.join(made.presets)}"[:64],
        project_id=project,
        owner_id=actor.user_id,
        workload=made.workload,
        request=made.model_dump(mode="json"),
        total=len(made.presets) * made.seeds,
    )
    return insert(actor, simulation)


def insert(actor: Actor, simulation: Simulation) -> Simulation:
    """Put a simulation behind the others. Raises RateLimited when too many of its project wait."""
    project = simulation.project_id
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise Invalid(detail, errors=[FieldError("/project", "unknown_value", detail)])
    waiting = Simulation.objects.filter(project_id=project, state__in=OPEN).count()
    if waiting >= MOST_OPEN:
        detail = f"{waiting} simulations of {project} are waiting or running. Cancel one, or try again later."
        raise RateLimited(detail, headers={"Retry-After": "30"})
    simulation.save()
    after = {"kind": str(simulation.kind), "presets": simulation.request.get("presets", [])}
    record(
        actor, "simulation.create", "simulation", simulation.id, simulation.name, project=project, after=after,
        run=simulation.run.key if simulation.run else "",
    )  # fmt: skip
    return queries.find_simulation(actor, simulation.id)


@transaction.atomic
def cancel(actor: Actor, simulation: Simulation) -> Simulation:
    """End a simulation that waits or is played; what it found so far is let go."""
    locked = _mine(actor, simulation)
    if locked.state not in OPEN:
        raise InvalidState(f"{locked.name} is {locked.state} already.", state=locked.state, allowed_actions=["delete"])
    locked.state, locked.reason_text = WorkState.CANCELLED, f"cancelled by {actor.name}"
    locked.finished_at, locked.lease_until, locked.now_at = timezone.now(), None, ""
    locked.save()
    record(actor, "simulation.cancel", "simulation", locked.id, locked.name, project=locked.project_id)
    return queries.find_simulation(actor, locked.id)


@transaction.atomic
def delete(actor: Actor, simulation: Simulation) -> None:
    """Delete a simulation that has ended."""
    locked = _mine(actor, simulation)
    if locked.state in OPEN:
        raise InvalidState(
            f"{locked.name} is {locked.state}; cancel it first.", state=locked.state, allowed_actions=["cancel"]
        )
    record(actor, "simulation.delete", "simulation", locked.id, locked.name, project=locked.project_id)
    locked.delete()


def _mine(actor: Actor, simulation: Simulation) -> Simulation:
    """Lock the row. Raises PermissionDenied for simulations of others, without `runs:act-any`."""
    if not queries.may_change(actor, simulation):
        own = simulation.owner_id == actor.user_id
        needed = Scope.RUNS_WRITE if own else Scope.RUNS_ACT_ANY
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})
    return Simulation.objects.select_for_update().get(pk=simulation.pk)
