"""Presets compared on what a run recorded: its team, replies, waits and scores, on machines as fast as its own were.

Invariants: the record, the fitted machines and the seeds are the same for every preset; the run as it was is played
beside them, so the model's error is told. A simulation lies in its run's project: who may not read the run may not read
what it recorded either.
"""

from functools import partial
from typing import Any

from django.db import transaction

from flexmarl.contracts.resolve import layered
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import TERMINAL
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations import actions
from flexmarl.controlplane.simulations.choices import SimulationKind
from flexmarl.controlplane.simulations.comparing import ComparisonProgress, ComparisonResult, side_by_side
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.controlplane.simulations.requests import Comparison, checked
from flexmarl.controlplane.simulations.what_if import (
    LEAST_STEPS,
    Recorded,
    TooLittleRecorded,
    basis,
    read_record,
    too_little,
)
from flexmarl.simulator import Scenario
from flexmarl.simulator.prediction.whatif import AS_IT_WAS
from flexmarl.store.reads import recorded

LOOKED_AT, OFFERED = 60, 20
"""Newest ended runs that are looked at, and most of them that are offered."""


def offered(actor: Actor, project: str = "", key: str = "") -> list[dict[str, Any]]:
    """List the newest ended runs that have recorded enough to be played again; or the run of a key, ended or not."""
    rows = runs.light(runs.runs(actor, Scope.RUNS_WRITE)).defer("spec")
    rows = rows.filter(key=key) if key else rows.filter(state__status__in=[str(status) for status in TERMINAL])
    rows = rows.filter(project_id=project) if project else rows
    found = list(rows[:LOOKED_AT])
    counts = recorded.counted_of(store_connection(), [run.no for run in found])
    enough = [(run, *counts[run.no]) for run in found if counts.get(run.no, (0, 0))[1] >= LEAST_STEPS]
    return [
        {"key": run.key, "name": run.name, "status": run.state.status, "episodes": episodes, "steps": steps}
        for run, episodes, steps in enough[:OFFERED]
    ]


def run_named(actor: Actor, reference: str) -> Run:
    """Return the run whose record is asked for. Raises ValidationProblem, also when the caller may not know of it."""
    try:
        return runs.find_run(actor, reference)
    except NotFound as unknown:
        hint = "Use the key or id of a run in a project you can read."
        raise ValidationProblem(
            unknown.detail, errors=[FieldError("/run", "unknown_value", unknown.detail, hint)]
        ) from None


@transaction.atomic
def create(
    actor: Actor, run: Run, wish: Comparison, *, name: str = "", project: str = "", leave_out: bool = False
) -> Simulation:
    """Ask for a comparison on a run's record. Raises TooLittleRecorded, or ValidationProblem with every refusal."""
    if project and project != run.project_id:
        detail = f"{run.key} belongs to {run.project_id}, where its recording must be simulated."
        hint = f"Omit project, or set {run.project_id}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail, hint)])
    actor.require(Scope.RUNS_WRITE, run.project_id)
    _refuse_short(run)
    _refuse_changed_load(wish)
    made = checked(wish, team_of(run), leave_out=leave_out)
    simulation = Simulation(
        kind=SimulationKind.COMPARISON,
        name=name or f"{run.key}: {', '.join(made.presets)}"[:64],
        project_id=run.project_id,
        owner_id=actor.user_id,
        run=run,
        request=made.model_dump(mode="json"),
        total=(1 + len(made.presets)) * made.seeds,
    )
    return actions.insert(actor, simulation)


def _refuse_short(run: Run) -> None:
    episodes, steps = recorded.counted(store_connection(), run.no)
    if steps < LEAST_STEPS:
        detail = too_little(run, episodes, steps).detail
        hint = "Choose a run that trained longer, or a built-in workload."
        raise TooLittleRecorded(detail, errors=[FieldError("/run", TooLittleRecorded.code, detail, hint)])


def _refuse_changed_load(wish: Comparison) -> None:
    for number, path in enumerate(wish.changes):
        if path.split(".")[0] == "workload":
            detail = f"{path}: a recorded load cannot be changed."
            hint = "Change spec. or machine. instead, or choose a built-in workload."
            raise ValidationProblem(detail, errors=[FieldError(f"/changes/{number}", "unknown_field", detail, hint)])


def team_of(run: Run) -> dict[str, Any]:
    """Return the scenario of a run without its mechanisms: those are what presets bring."""
    spec = ExperimentSpec.model_validate(run.spec).model_dump(mode="json")
    del spec["mechanisms"]
    return {"spec": spec}


def compared(row: Simulation, playing: ComparisonProgress) -> ComparisonResult:
    """Play the run as it was and each preset on its record, under every seed. Raises TooLittleRecorded."""
    assert row.run is not None
    wish = Comparison.model_validate(row.request)
    found = read_record(row.run)
    names = (AS_IT_WAS, *wish.presets)
    told = side_by_side(row, names, wish.seeds, partial(_scenario, row.run, wish, found), playing)
    replayed = told.result["presets"][AS_IT_WAS]["figures"]
    replay = replayed["step_s"]["mean"] if replayed else 0.0
    return ComparisonResult(
        told.result | {"record": basis(found, replay)}, told.timelines, told.reason, told.reason_text
    )


def _scenario(run: Run, wish: Comparison, found: Recorded, name: str, seed: int) -> Scenario:
    """Return what is played for a preset; the run as it was keeps its settings, whatever is changed for presets."""
    if name == AS_IT_WAS:
        return found.scenario(ExperimentSpec.model_validate(run.spec), wish.steps, wish.warm_up, seed)
    team = layered(team_of(run), {"machine": found.fit.machine.model_dump()})
    return wish.scenario(name, seed, team).model_copy(update={"workload": found.workload})
