"""Changes of runs: permission, check, write, audit, hint on commit.

The driver alone moves a run. A verb goes to the inbox in the transaction of its operation and audit row, and shows as
pending until the driver has handled it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.agents.actions import ensure_roles
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.ids import readable_key
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import (
    Conflict,
    FieldError,
    InvalidState,
    NotFound,
    PermissionDenied,
    ValidationProblem,
)
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.experiments.actions import ensure_experiment, release_baseline
from flexmarl.controlplane.experiments.plan_tokens import check_plan
from flexmarl.controlplane.experiments.plans import Draft, overlay, required
from flexmarl.controlplane.runs import origin_grants, queries, verbs
from flexmarl.controlplane.runs.choices import allowed_now, archivable
from flexmarl.controlplane.runs.marks import NO_MARKS, Marks, inherited, known_project, legal_tags
from flexmarl.controlplane.runs.model_sources import CheckpointSources
from flexmarl.controlplane.runs.models import Operation, Run, RunStateRow
from flexmarl.controlplane.runs.numbers import next_number
from flexmarl.controlplane.runs.row_sets import archive_rows
from flexmarl.controlplane.runs.verbs import NO_OPTIONS, VerbOptions
from flexmarl.store.control import inbox
from flexmarl.store.control import runs as store_runs

_KEY_TRIES = 5
MAX_NOTE = 20_000


@transaction.atomic
def create_run(
    actor: Actor,
    draft: Draft,
    *,
    project: str = DEFAULT_PROJECT,
    experiment: str = "",
    note: str = "",
    start: bool = False,
    marks: Marks = NO_MARKS,
    plan_token: str = "",
) -> Run:
    """Create a run from a draft specification, and start it when asked to. Raises ValidationProblem with pointers.

    With a plan token the run is what the plan spoke of: PlanStale when that is no longer so.
    """
    actor.require(Scope.RUNS_WRITE, project)
    if start:
        actor.require_any([Scope.RUNS_ACT, Scope.RUNS_ACT_ANY], project)
    known_project(project)
    checkpoints = CheckpointSources(actor, project)
    made = required(replace(draft, project=project, checkpoints=checkpoints))
    plan = check_plan(plan_token, made) if plan_token else None
    run = _insert(
        Run(
            no=next_number(made.spec),
            project_id=project,
            name=made.spec.name,
            experiment=ensure_experiment(actor, experiment, project) if experiment else None,
            owner_id=actor.user_id,
            preset=made.preset,
            template=made.template,
            environment=made.spec.environment.type,
            seed=made.spec.seed,
            spec=made.document,
            sources=inherited(made, marks.parent) if marks.parent else made.sources,
            note=note[:MAX_NOTE],
            tags=legal_tags(marks.tags),
            external_id=marks.external_id,
            request_digest=marks.request_digest,
            parent=marks.parent,
            plan=plan,
        )
    )
    store_runs.create_run(
        store_connection(), run.no, made.document, RunStatus.DRAFT, project=project, priority=marks.priority
    )
    checkpoints.pin(run, made.spec)
    ensure_roles(project, made.spec.agents)
    after = {"name": run.name, "template": made.template, "preset": made.preset}
    record(actor, "run.create", "run", run.id, run.key, project=project, after=after)
    if start:
        act(actor, run, Verb.START)
    live.announce_on_commit(live.CLUSTER, 0)
    return queries.find_run(actor, run.id)


@transaction.atomic
def act(actor: Actor, run: Run, verb: Verb, reason: str = "", options: VerbOptions = NO_OPTIONS) -> Operation:
    """Ask for a verb. Raises PermissionDenied, ValidationProblem, or InvalidState with the allowed actions."""
    if not queries.may_act(actor, run):
        needed = Scope.RUNS_ACT if run.owner_id == actor.user_id else Scope.RUNS_ACT_ANY
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})
    verbs.check(verb, options)
    state = RunStateRow.objects.select_for_update().get(run=run)
    if not Run.objects.filter(pk=run.pk).exists():
        raise NotFound(f"{run.key} was deleted.")
    status = RunStatus(state.status)
    if run.archived_at is not None:
        raise InvalidState(f"{run.key} is archived; restore it first.", state=status.value, allowed_actions=[])
    allowed = allowed_now(status, state.pending_verb)
    if verb not in allowed:
        raise _invalid(run, verb, status, state.pending_verb, allowed)
    if verb in (Verb.START, Verb.RETRY):
        origin_grants.require(run)
    if verb is Verb.START:
        archive_rows.begin(run)
    operation = Operation.objects.create(
        run=run, verb=verb.value, actor_id=actor.user_id, reason=reason, request_id=actor.request_id
    )
    event = verbs.event_of(actor, run, operation, options)
    inbox.put_verb(store_connection(), run.no, operation.producer_key, event)
    asked = {"operation": str(operation.id), "reason": reason, "status": status.value, **options.given}
    record(actor, f"run.{verb}", "run", run.id, run.key, project=run.project_id, **asked)
    live.announce_on_commit(live.run_topic(run.id), state.seq)
    return operation


def create_once(actor: Actor, draft: Draft, *, marks: Marks, **options: Any) -> tuple[Run, bool]:
    """Return the run of an external id, or create it; whether it was created. Two callers at once get the same run.

    Raises Conflict when the run that is there was made of another body.
    """
    project = options.get("project", DEFAULT_PROJECT)
    actor.require(Scope.RUNS_WRITE, project)
    mine = queries.runs(actor).filter(project=project, external_id=marks.external_id)
    if (found := mine.first()) is not None:
        return _same(found, marks), False
    try:
        return create_run(actor, draft, marks=marks, **options), True
    except IntegrityError:
        if (found := mine.first()) is None:
            raise
        return _same(found, marks), False


def _same(run: Run, marks: Marks) -> Run:
    if run.request_digest and run.request_digest != marks.request_digest:
        text = f"{run.key} has the external id {run.external_id} and was created from another body."
        hint = "Repeat the first body exactly, or use a new external id."
        error = FieldError("external_id", "conflict", text, hint, "query")
        raise Conflict(f"{text} {hint}", errors=[error], extra={"existing": str(run.id)})
    return run


def clone(actor: Actor, run: Run, draft: Draft, *, spec: Mapping[str, Any] | None = None, **options: Any) -> Run:
    """Make a new draft of a run's specification (or of `spec`) with some of it changed; `parent` names the run."""
    changes = overlay(draft.spec, draft.overrides)
    name = draft.name or ("" if "name" in changes else run.name)
    whole = replace(
        draft, name=name, preset=draft.preset or run.preset, template=draft.template or run.template,
        spec=run.spec if spec is None else spec, overrides=changes,
    )  # fmt: skip
    marks = replace(options.pop("marks", NO_MARKS), parent=run)
    return create_run(actor, whole, project=options.pop("project", "") or run.project_id, marks=marks, **options)


@transaction.atomic
def archive(actor: Actor, run: Run) -> Run:
    """Take an ended run or a draft out of the lists. It stays readable, and can be restored."""
    _require_edit(actor, run)
    state = RunStateRow.objects.select_for_update().get(run=run)
    status = RunStatus(state.status)
    if not archivable(status, state.pending_verb):
        raise InvalidState(
            f"{run.key} is {status}; only ended runs and drafts can be archived.",
            state=status.value,
            allowed_actions=[str(name) for name in allowed_now(status, state.pending_verb)],
        )
    return _set_archived(actor, run, run.archived_at or timezone.now())


@transaction.atomic
def restore(actor: Actor, run: Run) -> Run:
    """Put an archived run back into the lists."""
    return _set_archived(actor, run, None)


def _require_edit(actor: Actor, run: Run) -> None:
    if not queries.may_edit(actor, run):
        raise PermissionDenied("Only the owner of a run and operators may archive and restore it.")


def _set_archived(actor: Actor, run: Run, at: datetime | None) -> Run:
    _require_edit(actor, run)
    if (at is None) != (run.archived_at is None):
        _write(actor, run, "run.restore" if at is None else "run.archive", archived_at=at)
        live.announce_on_commit(live.CLUSTER, 0)
    return queries.find_run(actor, run.id)


@transaction.atomic
def tag(actor: Actor, run: Run, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Run:
    """Add and remove tags."""
    now = _locked(run)
    return update_run(actor, run, tags=[*(name for name in now.tags if name not in set(remove)), *add])


@transaction.atomic
def update_run(
    actor: Actor,
    run: Run,
    *,
    name: str | None = None,
    note: str | None = None,
    tags: Iterable[str] | None = None,
    experiment: str | None = None,
    precondition: Precondition = any_version,
) -> Run:
    """Change a run's name, note, tags and experiment (by name; "": none); the specification never changes."""
    if not queries.may_edit(actor, run):
        raise PermissionDenied("Only the owner of a run and operators may edit it.")
    now = _locked(run)
    precondition(now.version)
    changes: dict[str, Any] = {}
    if tags is not None:
        changes["tags"] = legal_tags(tags)
    if name is not None:
        if not 1 <= len(name.strip()) <= 64:
            detail = "A name must have 1 to 64 characters."
            raise ValidationProblem(detail, errors=[FieldError("/name", "out_of_range", detail)])
        changes["name"] = name.strip()
    if note is not None:
        changes["note"] = note[:MAX_NOTE]
    if experiment is not None:
        into = ensure_experiment(actor, experiment, now.project_id) if experiment else None
        changes["experiment_id"] = None if into is None else into.pk
        if now.experiment_id != changes["experiment_id"]:
            release_baseline(now.pk)
    if changes:
        _write(actor, now, "run.update", **changes)
    return queries.find_run(actor, run.id)


def _locked(run: Run) -> Run:
    """Read a run again under its lock: somebody may have edited it since the caller read it."""
    return Run.objects.select_for_update(of=("self",)).get(pk=run.pk)


def _write(actor: Actor, run: Run, action: str, **changes: Any) -> None:
    before = {name: _plain(getattr(run, name)) for name in changes}
    after = {name: _plain(value) for name, value in changes.items()}
    Run.objects.filter(pk=run.pk).update(version=F("version") + 1, updated_at=timezone.now(), **changes)
    record(actor, action, "run", run.id, run.key, project=run.project_id, before=before, after=after)
    live.announce_on_commit(live.run_topic(run.id), run.state.seq)


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return rfc3339(value) if isinstance(value, datetime) else value


def _insert(run: Run) -> Run:
    """Save a new run under a key that is free."""
    for attempt in range(_KEY_TRIES):
        run.key = readable_key(run.name)
        try:
            with transaction.atomic():
                run.save(force_insert=True)
        except IntegrityError:
            if attempt == _KEY_TRIES - 1:
                raise
        else:
            return run
    raise AssertionError("unreachable")


def _invalid(run: Run, verb: Verb, status: RunStatus, pending: str, allowed: tuple[Verb, ...]) -> InvalidState:
    behind = f" with {pending} pending" if pending else ""
    legal = ", ".join(allowed) or "none"
    return InvalidState(
        f"{run.key} is {status}{behind}; {verb} is not possible. Possible: {legal}.",
        state=status.value,
        allowed_actions=[str(name) for name in allowed],
    )
