"""Changes of sweeps: permission, check, write, audit. They are advanced by `manage.py simulations`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.db import transaction
from pydantic import ValidationError

from flexmarl.contracts.problems import SpecProblems, nearest, problems_of
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, InvalidState, PermissionDenied, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments.actions import ensure_experiment
from flexmarl.controlplane.experiments.plans import Draft, required, resolve_draft
from flexmarl.controlplane.runs.marks import known_project
from flexmarl.controlplane.runs.model_sources import CheckpointSources
from flexmarl.controlplane.sweeps import queries
from flexmarl.controlplane.sweeps.models import Sweep, SweepState
from flexmarl.controlplane.sweeps.plan import SearchPlan, known_pointers, overrides, places
from flexmarl.controlplane.telemetry.charts.definitions import DEFINITIONS, FAMILIES

SEARCHED_NEVER = ("/name",)
"""Pointers that a sweep sets itself."""


@transaction.atomic
def create_sweep(
    actor: Actor, name: str, draft: Draft, plan: Mapping[str, Any], *, project: str = DEFAULT_PROJECT,
    experiment: str = "",
) -> Sweep:  # fmt: skip
    """Begin a sweep. Raises ValidationProblem with every refusal of the plan, by field, rule and legal value."""
    actor.require(Scope.RUNS_WRITE, project)
    actor.require_any([Scope.RUNS_ACT, Scope.RUNS_ACT_ANY], project)
    known_project(project)
    read = _read(plan)
    whole = replace(draft, project=project, checkpoints=CheckpointSources(actor, project))
    base = required(whole)
    errors = [*_metric(read), *_illegal(read, base.document, replace(whole, preset=base.preset, yaml=""))]
    if errors:
        raise ValidationProblem("The sweep is refused: " + errors[0].detail, errors=errors)
    made = Sweep.objects.create(
        project_id=project, name=name, owner_id=actor.user_id, preset=base.preset, template=base.template,
        spec=base.document, plan=read.model_dump(mode="json"),
        experiment=ensure_experiment(actor, experiment, project) if experiment else None,
    )  # fmt: skip
    record(actor, "sweep.create", "sweep", made.pk, name, project=project, after={"plan": made.plan})
    return queries.find_sweep(actor, made.pk)


@transaction.atomic
def stop(actor: Actor, sweep: Sweep) -> Sweep:
    """Create no more runs; those that were created go on."""
    return _moved(actor, sweep, "stop", SweepState.STOPPED, f"stopped by {actor.name}")


@transaction.atomic
def resume(actor: Actor, sweep: Sweep) -> Sweep:
    """Go on with a sweep that was stopped."""
    return _moved(actor, sweep, "resume", SweepState.RUNNING, "")


@transaction.atomic
def delete(actor: Actor, sweep: Sweep) -> None:
    """Delete a sweep that does not run; its runs stay."""
    locked = _locked(actor, sweep, "delete")
    record(actor, "sweep.delete", "sweep", locked.pk, locked.name, project=locked.project_id)
    locked.delete()


def _moved(actor: Actor, sweep: Sweep, action: str, state: SweepState, text: str) -> Sweep:
    locked = _locked(actor, sweep, action)
    locked.state, locked.reason, locked.reason_text, locked.version = state, "", text, locked.version + 1
    locked.save()
    record(actor, f"sweep.{action}", "sweep", locked.pk, locked.name, project=locked.project_id)
    return queries.find_sweep(actor, locked.pk)


def _locked(actor: Actor, sweep: Sweep, action: str) -> Sweep:
    """Lock the row. Raises PermissionDenied for sweeps of others, InvalidState where its state does not allow it."""
    if not queries.may_change(actor, sweep):
        needed = Scope.RUNS_ACT if sweep.owner_id == actor.user_id else Scope.RUNS_ACT_ANY
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})
    locked = Sweep.objects.select_for_update().get(pk=sweep.pk)
    allowed = queries.ACTIONS.get(SweepState(locked.state), ["delete"])
    if action not in allowed:
        raise InvalidState(
            f"{locked.name} is {locked.state}; {action} is not possible. Possible: {', '.join(allowed)}.",
            state=locked.state,
            allowed_actions=allowed,
        )
    return locked


def _read(plan: Mapping[str, Any]) -> SearchPlan:
    try:
        return SearchPlan.model_validate(dict(plan))
    except ValidationError as error:
        errors = [
            FieldError(f"/plan{one.pointer}", one.code, one.detail, one.hint)
            for one in problems_of(error, SearchPlan, plan)
        ]
        raise ValidationProblem("The sweep is refused: " + errors[0].detail, errors=errors) from error


def _metric(plan: SearchPlan) -> list[FieldError]:
    team = [name for name, one in DEFINITIONS.items() if one.of == "team"]
    if plan.metric in team or plan.metric.startswith(tuple(FAMILIES)):
        return []
    close = nearest(plan.metric, team)
    detail = f"{plan.metric} is not a series of the team and cannot be the objective."
    hint = f"Did you mean {close}?" if close else f"Such as reward/team, eval/team_score, or {', '.join(FAMILIES)}NAME."
    return [FieldError("/plan/metric", "unknown_value", detail, hint)]


def _illegal(plan: SearchPlan, document: Mapping[str, Any], draft: Draft) -> list[FieldError]:
    """Return what the specification does not let the plan set: each value is tried in the whole specification."""
    errors = []
    for index, parameter in enumerate(plan.parameters):
        where = f"/plan/parameters/{index}"
        if parameter.pointer in SEARCHED_NEVER:
            errors.append(FieldError(f"{where}/pointer", "not_searchable", "Runs of a sweep are named by it."))
        elif not places(document, parameter.pointer):
            close = nearest(parameter.pointer, known_pointers(document))
            detail = f"The specification has no {parameter.pointer}."
            hint = f"Did you mean {close}?" if close else "A pointer such as /policies/*/optimizer/learning_rate."
            errors.append(FieldError(f"{where}/pointer", "unknown_pointer", detail, hint))
        else:
            for ending, value in parameter.ends():
                errors += _refused(f"{where}{ending}", document, draft, {parameter.pointer: value})
    return errors


def _refused(where: str, document: Mapping[str, Any], draft: Draft, values: Mapping[str, Any]) -> list[FieldError]:
    changed = replace(draft, spec=document, overrides=overrides(document, values))
    try:
        resolve_draft(changed)
    except SpecProblems as refused:
        first = refused.problems[0]
        return [FieldError(where, first.code, f"{first.pointer}: {first.detail}", first.hint)]
    return []
