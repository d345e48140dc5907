"""Changes of experiments: permission, write, audit."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import DuplicateName, FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments.models import Experiment

MOST_TEXT = 20_000
"""Characters of notes, and of a verdict's reasons."""
FIELDS = ("name", "description", "question", "notes", "verdict", "verdict_text")


@transaction.atomic
def create_experiment(
    actor: Actor, name: str, description: str = "", project: str = "default", question: str = "", notes: str = ""
) -> Experiment:
    """Create an experiment."""
    actor.require(Scope.RUNS_WRITE, project)
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail)])
    given = {"description": description, "question": question, "notes": notes[:MOST_TEXT]}
    experiment, created = Experiment.objects.get_or_create(
        project_id=project, name=name, defaults={**given, "owner_id": actor.user_id}
    )
    if not created:
        raise DuplicateName(f"There is an experiment named {name}.", extra={"existing": str(experiment.id)})
    record(actor, "experiment.create", "experiment", experiment.id, name, project=project, after=given)
    return experiment


@transaction.atomic
def ensure_experiment(actor: Actor, name: str, project: str = "default") -> Experiment:
    """Return the experiment of a name, made if there is none."""
    found = Experiment.objects.filter(project_id=project, name=name).first()
    return found or create_experiment(actor, name, project=project)


@transaction.atomic
def update_experiment(
    actor: Actor, experiment: Experiment, changes: Mapping[str, Any], precondition: Precondition = any_version
) -> Experiment:
    """Change what is said of an experiment; `changes` holds members of `FIELDS`, and `baseline`: id, key or None."""
    actor.require(Scope.RUNS_WRITE, experiment.project_id)
    now = Experiment.objects.select_for_update(of=("self",)).get(pk=experiment.pk)
    precondition(now.version)
    written = {name: changes[name] for name in FIELDS if name in changes}
    if "name" in written:
        written["name"] = _free_name(now, written["name"].strip())
    if "baseline" in changes:
        written["baseline_id"] = _baseline(now, changes["baseline"])
    if written:
        before = {name: _plain(getattr(now, name)) for name in written}
        after = {name: _plain(value) for name, value in written.items()}
        Experiment.objects.filter(pk=now.pk).update(version=F("version") + 1, updated_at=timezone.now(), **written)
        record(
            actor, "experiment.update", "experiment", now.id, now.name, project=now.project_id, before=before,
            after=after,
        )  # fmt: skip
    return Experiment.objects.get(pk=now.pk)


@transaction.atomic
def delete_experiment(actor: Actor, experiment: Experiment) -> None:
    """Delete an experiment; its runs stay, and belong to none."""
    actor.require(Scope.RUNS_WRITE, experiment.project_id)
    project = experiment.project_id
    record(
        actor, "experiment.delete", "experiment", experiment.id, experiment.name, project=project,
        runs=experiment.runs.count(),
    )  # fmt: skip
    experiment.delete()


def release_baseline(run_id: UUID) -> None:
    """Take a run that leaves its experiment away from being the baseline."""
    Experiment.objects.filter(baseline_id=run_id).update(baseline=None, version=F("version") + 1)


def _free_name(experiment: Experiment, name: str) -> str:
    """Return a name that no other experiment of the project has. Raises ValidationProblem, DuplicateName."""
    if not name:
        detail = "A name must have 1 to 64 characters."
        raise ValidationProblem(detail, errors=[FieldError("/name", "out_of_range", detail)])
    others = Experiment.objects.filter(project_id=experiment.project_id, name=name).exclude(pk=experiment.pk)
    if (other := others.first()) is not None:
        raise DuplicateName(f"There is an experiment named {name}.", extra={"existing": str(other.id)})
    return name


def _baseline(experiment: Experiment, reference: str | None) -> UUID | None:
    """Return the id of a run of the experiment, named by id or key. Raises ValidationProblem."""
    if not reference:
        return None
    try:
        found = experiment.runs.filter(pk=UUID(reference)).first()
    except ValueError:
        found = experiment.runs.filter(key=reference).first()
    if found is None:
        detail = f"{reference} is not a run of {experiment.name}."
        hint = "The baseline is one of the experiment's own runs; move the run to it first."
        raise ValidationProblem(detail, errors=[FieldError("/baseline", "unknown_run", detail, hint)])
    return found.pk


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value
