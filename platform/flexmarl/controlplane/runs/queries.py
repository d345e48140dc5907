"""What others read of runs, as plain values: rows of lists, the detail, operations, versions.

The API's serializers and the pages share these dictionaries. `allowed_actions` speaks of the state alone; whether a
caller may act is `may_act`.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Count, Func, Q, QuerySet, Value
from pydantic import TypeAdapter

from flexmarl.contracts.arithmetic import arithmetic
from flexmarl.contracts.live import Progress
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.status import RunStatus, shown_status
from flexmarl.controlplane.agents import queries as agents
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.datasets.naming import OF_ROWS
from flexmarl.controlplane.experiments.predictions import plan_row
from flexmarl.controlplane.runs import configuration, histories
from flexmarl.controlplane.runs.choices import allowed_now
from flexmarl.controlplane.runs.models import Operation, PolicyVersion, Run
from flexmarl.store.telemetry import metrics

ETA_LOW, ETA_HIGH = 0.8, 1.3
"""Range of the estimate around `remaining steps x median of the last 20 steps`."""

attempts = histories.attempts
operations = histories.operations
operation_row = histories.operation_row
operation_rows = histories.operation_rows


def runs(actor: Actor, scope: Scope = Scope.RUNS_READ) -> QuerySet[Run]:
    """The runs of projects in which the caller has a scope, with what a row needs, newest first."""
    rows = Run.objects.select_related("state", "owner", "experiment", "parent").defer(*_unread()).order_by("-id")
    return in_reach(rows, actor, scope)


@cache
def _unread() -> tuple[str, ...]:
    """Columns of the joined rows that no row of a run shows: each one named costs the SQL compiler."""
    shown = {"owner": "username", "experiment": "name", "parent": "key"}
    related = {relation: Run._meta.get_field(relation).related_model for relation in shown}
    return tuple(
        f"{relation}__{field.name}"
        for relation, kept in shown.items()
        if (model := related[relation]) is not None
        for field in model._meta.concrete_fields
        if field.name != kept and not field.primary_key
    )


def find_run(actor: Actor, reference: object, scope: Scope = Scope.RUNS_READ) -> Run:
    """Return a run by id or key. Raises NotFound, also when the caller may not know of it."""
    text = str(reference)
    try:
        found = runs(actor, scope).filter(pk=UUID(text)).first()
    except ValueError:
        found = runs(actor, scope).filter(key=text).first()
    if found is None:
        raise NotFound(f"There is no run {text}.")
    return found


def of_agent(actor: Actor, project: str, name: str) -> QuerySet[Run]:
    """The runs of a project that name an agent definition, newest first."""
    path = Value(f"$.agents.* ? (@.definition.name == {json.dumps(name)})")
    named = Func("spec", path, template="jsonb_path_exists(%(expressions)s::jsonpath)", output_field=BooleanField())
    return runs(actor).filter(named, project_id=project)


def of_team(actor: Actor, project: str, name: str) -> QuerySet[Run]:
    """The runs of a project that name a team, newest first."""
    return runs(actor).filter(project_id=project, spec__team__contains={"name": name})


def of_dataset(actor: Actor, project: str, name: str) -> QuerySet[Run]:
    """The runs that name a dataset of a project, newest first."""
    named = {"dataset": {"project": project, "name": name}}
    return runs(actor).filter(spec__environment__type__in=OF_ROWS, spec__environment__contains=named)


def may_act(actor: Actor, run: Run) -> bool:
    """Say whether a caller may start, pause, resume, stop and kill a run."""
    own = run.owner_id is not None and run.owner_id == actor.user_id
    project = run.project_id
    return actor.may(Scope.RUNS_ACT_ANY, project) or (own and actor.may(Scope.RUNS_ACT, project))


def may_edit(actor: Actor, run: Run) -> bool:
    """Say whether a caller may change a run's name and note."""
    own = run.owner_id is not None and run.owner_id == actor.user_id
    project = run.project_id
    return actor.may(Scope.RUNS_WRITE, project) and (own or actor.may(Scope.RUNS_ACT_ANY, project))


def run_rows(found: Iterable[Run]) -> list[dict[str, Any]]:
    """Return runs as rows; reads the hues of all their projects in one query."""
    make = RowMaker()
    return [make(run) for run in found]


class RowMaker:
    """Turns runs into rows and remembers the hues of their projects."""

    def __init__(self) -> None:
        self._hues: dict[str, dict[str, int]] | None = None

    def __call__(self, run: Run) -> dict[str, Any]:
        """Return one run as a row."""
        if self._hues is None:
            self._hues = agents.all_hues()
        return _row(run, self._hues.get(run.project_id, {}))


def run_detail(run: Run) -> dict[str, Any]:
    """Return a run with its specification, value sources, arithmetic and note."""
    return {
        **RowMaker()(run),
        "spec": run.spec,
        "sources": run.sources,
        "arithmetic": arithmetic(ExperimentSpec.model_validate(run.spec)).model_dump(mode="json"),
        "attempts": attempts(run),
        "notes": run.note,
        "plan": planned(run),
        "seq": run.state.seq,
    }


def planned(run: Run) -> dict[str, Any] | None:
    """Return what was predicted of a run in short; None when no plan predicted it."""
    if run.plan is None:
        return None
    told = plan_row(run.plan)
    short = ("id", "made_at", "step_s", "tokens_s", "utilisation", "hours", "device_hours", "cost")
    return {**{name: told[name] for name in short}, "url": f"/api/v1/runs/{run.id}/prediction"}


def _devices(spec: Mapping[str, Any]) -> int:
    """Count the devices that a run asks for: colocated trainers have none of their own, but for those that do."""
    resources, allocation = spec["resources"], spec.get("mechanisms", {}).get("allocation", {})
    shares = allocation.get("type") == "colocated"
    own = int(allocation.get("own_devices", 0)) if shares else int(resources["training_devices"])
    asked = resources["rollout_devices"]
    return int(asked["min"] if isinstance(asked, Mapping) else asked) + own


def _row(run: Run, hues: dict[str, int]) -> dict[str, Any]:
    state = run.state
    progress = progress_of(run)
    status = RunStatus(state.status)
    return {
        "id": str(run.id),
        "key": run.key,
        "no": run.no,
        "name": run.name,
        "project": run.project_id,
        "status": shown_status(status, state.reason),
        "reason": state.reason,
        "reason_text": state.reason_text,
        "status_since": rfc3339(state.status_since),
        "pending_verb": state.pending_verb,
        "allowed_actions": [] if run.archived_at else [verb.value for verb in allowed_now(status, state.pending_verb)],
        "preset": run.preset,
        "template": run.template,
        "seed": run.seed,
        "owner": run.owner.username if run.owner else None,
        "experiment": None if run.experiment is None else {"id": str(run.experiment_id), "name": run.experiment.name},
        "environment": run.environment,
        "tags": run.tags,
        "external_id": run.external_id,
        "parent": None if run.parent is None else {"id": str(run.parent_id), "key": run.parent.key},
        "archived_at": rfc3339(run.archived_at),
        "headline": headline(progress),
        "devices": _devices(run.spec),
        "attempt": progress["attempt"],
        "step": state.step,
        "max_steps": progress["max_steps"],
        "progress": progress,
        "eta_s": eta(status, progress),
        "agents": _agents(run, progress, hues),
        "created_at": rfc3339(run.created_at),
        "updated_at": rfc3339(run.updated_at),
        "started_at": rfc3339(state.started_at),
        "finished_at": rfc3339(state.finished_at),
        "version": run.version,
        "url": f"/api/v1/runs/{run.id}",
        "web_url": f"/runs/{run.key}",
    }


def progress_of(run: Run) -> dict[str, Any]:
    """Return a run's progress, complete also before the driver has written any."""
    progress = Progress.model_validate(run.state.progress)
    if not progress.max_steps:
        progress = progress.model_copy(update={"max_steps": run.spec["budget"]["train_steps"]})
    return progress.model_dump(mode="json")


def headline(progress: dict[str, Any]) -> dict[str, Any]:
    """Return the figure that lists show of a run: the team's reward now, and its change since the first step."""
    now, first = progress["reward"], progress["reward_first"]
    change = None if now is None or first is None else now - first
    return {"name": "reward/team", "last": now, "change": change}


def eta(status: RunStatus, progress: dict[str, Any]) -> dict[str, float] | None:
    """Estimate the seconds to the end of the budget while running; a target may end the run earlier."""
    if status is not RunStatus.RUNNING or not progress["step_seconds"]:
        return None
    middle = progress["step_seconds"] * max(0, progress["max_steps"] - progress["step"])
    return {"low": round(middle * ETA_LOW, 1), "high": round(middle * ETA_HIGH, 1)}


@lru_cache(maxsize=256)
def _seats(environment: str) -> tuple[str, ...]:
    """Return the roles in the order of the environment (given as JSON); a column of JSON does not keep an order."""
    spec = TypeAdapter(EnvironmentSpec).validate_json(environment)
    return tuple(role.name for role in spec.facts().roles)


def _agents(run: Run, progress: dict[str, Any], hues: dict[str, int]) -> list[dict[str, Any]]:
    seats = _seats(json.dumps(run.spec["environment"], sort_keys=True))
    spec = {role: run.spec["agents"][role] for role in seats if role in run.spec["agents"]}
    marks = agents.monograms(list(spec))
    return [
        {
            "role": role,
            "policy": agent["policy"] or role,
            "trainable": agent["trainable"],
            "hue": hues.get(role, 1),
            "monogram": marks[role],
            "version": progress["agents"].get(role, {}).get("version", 0),
            "reward": progress["agents"].get(role, {}).get("reward"),
        }
        for role, agent in spec.items()
    ]


def status_counts(rows: QuerySet[Run], user_id: object) -> dict[str, tuple[int, int]]:
    """Count runs by status: all, and those of one person; one query."""
    mine = Count("pk", filter=Q(owner_id=user_id))
    counted = rows.order_by().values("state__status", "state__reason").annotate(all=Count("pk"), mine=mine)
    found: dict[str, tuple[int, int]] = {}
    for row in counted:
        status = shown_status(row["state__status"], row["state__reason"])
        every, own = found.get(status, (0, 0))
        found[status] = (every + row["all"], own + row["mine"])
    return found


def light(rows: QuerySet[Run]) -> QuerySet[Run]:
    """Leave out what rows of lists do not show."""
    return rows.defer("sources", "note", "parent__spec", "parent__sources", "parent__note")


def curves(found: Iterable[Run], name: str = "reward/team", points: int = 40) -> dict[int, list[float]]:
    """Read a team series of several runs, thinned, by run number; one query."""
    numbers = [run.no for run in found if run.state.step]
    return metrics.curves_of_runs(store_connection(), numbers, name, points) if numbers else {}


def recent(found: Iterable[Run], steps: int, name: str = "reward/team") -> dict[int, list[float]]:
    """Read the last values of a team series of several runs, by run number; one query."""
    numbers = [run.no for run in found if run.state.step]
    return metrics.recent_of_runs(store_connection(), numbers, name, steps) if numbers else {}


def last_values(found: Iterable[Run], name: str) -> dict[int, float]:
    """Read the newest value of a team series of several runs, by run number; one query."""
    numbers = [run.no for run in found if run.state.step]
    return metrics.last_of_runs(store_connection(), numbers, name) if numbers else {}


def names_of(numbers: Iterable[int]) -> dict[int, dict[str, str]]:
    """Map run numbers to how people call the runs."""
    found = Run.objects.filter(no__in=set(numbers)).values("no", "id", "key", "name")
    return {
        row["no"]: {"id": str(row["id"]), "key": row["key"], "name": row["name"], "web_url": f"/runs/{row['key']}"}
        for row in found
    }


def find_operation(actor: Actor, operation_id: object) -> Operation:
    """Return an operation. Raises NotFound, also when the caller may not know of its run."""
    rows = in_reach(Operation.objects.select_related("run__state", "actor"), actor, Scope.RUNS_READ, "run__project_id")
    try:
        found = rows.filter(pk=UUID(str(operation_id))).first()
    except ValueError:
        found = None
    if found is None:
        raise NotFound(f"There is no operation {operation_id}.")
    return found


def config_diff(run: Run, against: Run) -> dict[str, Any]:
    """Compare the specifications of two runs value by value."""
    return configuration.config_diff(run, against)


def versions(run: Run) -> list[dict[str, Any]]:
    """List a run's newest committed version per policy."""
    rows = PolicyVersion.objects.filter(run_id=run.no).order_by("policy", "-version").distinct("policy")
    return [
        {
            "policy": row.policy,
            "version": row.version,
            "parent": row.parent,
            "digest": row.digest,
            "durable": bool(row.state),
            "facts": row.facts,
            "created_at": rfc3339(row.at),
        }
        for row in rows
    ]
