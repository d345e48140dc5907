"""What others read of suites and evaluations, as plain values."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import Max, QuerySet

from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.evaluations.models import EvaluationCell, ModelEvaluation, Suite, SuiteVersion
from flexmarl.controlplane.runs.models import Run


def suites(actor: Actor) -> QuerySet[Suite]:
    """The suites of projects whose runs the caller may read, newest first."""
    return in_reach(Suite.objects.annotate(newest=Max("versions__number")).order_by("-id"), actor, Scope.RUNS_READ)


def find_suite(actor: Actor, suite_id: UUID) -> Suite:
    """Return a suite that the caller may read. Raises NotFound."""
    found = suites(actor).filter(pk=suite_id).first()
    if found is None:
        raise NotFound("There is no such suite.")
    return found


def versions(suite: Suite) -> QuerySet[SuiteVersion]:
    """Return the versions of a suite, the newest first."""
    return SuiteVersion.objects.filter(suite=suite).select_related("suite").order_by("-number")


def find_version(suite: Suite, number: int | None = None) -> SuiteVersion:
    """Return a version of a suite, the newest without a number. Raises NotFound."""
    rows = versions(suite)
    found = rows.first() if number is None else rows.filter(number=number).first()
    if found is None:
        raise NotFound(f"{suite.name} has no version {number}.")
    return found


def newest_number(suite: Suite) -> int:
    """Return the number of the newest version, 0 where there is none."""
    return int(versions(suite).values_list("number", flat=True).first() or 0)


def converses(environment: Mapping[str, Any]) -> bool:
    """Tell whether an environment speaks in messages: only chat models can play it."""
    kind = ENVIRONMENT.variants().get(str(environment.get("type", "")))
    return kind is not None and bool(getattr(kind, "converses", False))


def evaluations(actor: Actor) -> QuerySet[ModelEvaluation]:
    """The evaluations of projects whose runs the caller may read, newest first."""
    rows = ModelEvaluation.objects.select_related("suite_version__suite", "owner").order_by("-id")
    return in_reach(rows, actor, Scope.RUNS_READ)


def find_evaluation(actor: Actor, evaluation_id: UUID) -> ModelEvaluation:
    """Return an evaluation that the caller may read. Raises NotFound."""
    found = evaluations(actor).filter(pk=evaluation_id).first()
    if found is None:
        raise NotFound("There is no such evaluation.")
    return found


def cells(evaluation: ModelEvaluation) -> list[EvaluationCell]:
    """Return the cells of an evaluation with their runs, model by model."""
    rows = EvaluationCell.objects.filter(evaluation=evaluation).select_related("run__state", "run__owner")
    return list(rows.order_by("entry", "part"))


def cells_of_version(version: SuiteVersion) -> list[EvaluationCell]:
    """Return the cells of all evaluations of a version, the newest evaluation first."""
    rows = EvaluationCell.objects.filter(evaluation__suite_version=version)
    return list(rows.select_related("evaluation", "run__state").order_by("-evaluation_id", "entry", "part"))


def goes_on(run: Run) -> bool:
    """Tell whether a run has not ended."""
    return RunStatus(run.state.status) not in TERMINAL


def suite_row(suite: Suite) -> dict[str, Any]:
    """Return a suite of a list as a plain value."""
    return {
        "id": str(suite.id),
        "project": suite.project_id,
        "name": suite.name,
        "description": suite.description,
        "newest": suite.newest,  # type: ignore[attr-defined] # annotated by `suites`
        "created_at": rfc3339(suite.created_at),
        "updated_at": rfc3339(suite.updated_at),
        "version": suite.version,
        "url": f"/api/v1/suites/{suite.id}",
        "web_url": f"/suites/{suite.id}",
    }


def version_row(made: SuiteVersion) -> dict[str, Any]:
    """Return a version of a suite as a plain value."""
    return {
        "suite": str(made.suite_id),
        "name": made.suite.name,
        "project": made.suite.project_id,
        "number": made.number,
        "content": made.content,
        "note": made.note,
        "author": made.author,
        "created_at": rfc3339(made.created_at),
        "url": f"/api/v1/suites/{made.suite_id}/versions/{made.number}",
    }


def evaluation_row(made: ModelEvaluation) -> dict[str, Any]:
    """Return an evaluation of a list as a plain value."""
    return {
        "id": str(made.id),
        "project": made.project_id,
        "name": made.name,
        "suite": made.suite_version.suite.name,
        "suite_id": str(made.suite_version.suite_id),
        "suite_version": made.suite_version.number,
        "models": [entry["label"] for entry in made.entries],
        "owner": None if made.owner is None else made.owner.username,
        "note": made.note,
        "created_at": rfc3339(made.created_at),
        "url": f"/api/v1/evaluations/{made.id}",
        "web_url": f"/evaluations/{made.id}",
    }
