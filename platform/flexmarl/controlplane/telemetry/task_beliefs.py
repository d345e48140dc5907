"""What a run's task sampler believes of the tasks that it chooses from, as the driver's last snapshot has it.

Tasks are numbered from 0, as the sampler numbers them and the decisions of the run name them. A snapshot is taken every
so many events and at each end, so what is shown may be a little older than the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER
from flexmarl.controlplane.common.api.pagination import Cursor, decode
from flexmarl.controlplane.common.problems import Conflict, FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.orchestrator import Orchestrator
from flexmarl.store.control import runs

DEFAULT_LIMIT, MAX_LIMIT = 50, 200
_ORDERING = "task"


class OtherSnapshot(Conflict):
    """Another version of this software wrote the snapshot."""

    code = "other_snapshot"
    title = "The snapshot of the run cannot be read"


@dataclass(frozen=True, slots=True)
class BeliefPage:
    """Some tasks of the set, in the order of their numbers."""

    sampler: str
    """Type of the sampler."""
    tasks: int
    """Size of the set; 0: the sampler chooses none."""
    played: int
    """Tasks that were played."""
    steps: int
    """Of the run that were done when the snapshot was taken."""
    summary: str
    """What is believed of the set, in words; may be empty."""
    count: int
    """Tasks that match."""
    rows: list[dict[str, Any]]
    next: str | None
    """Cursor of the next page."""


def chooses(spec: Mapping[str, Any]) -> bool:
    """Tell whether the task sampler of a specification chooses among tasks; one that is not installed does not."""
    options = TASK_SAMPLER.variants().get(spec["sampling"]["task_sampler"]["type"])
    return options is not None and options.chooses


def page(run: Run, *, played: bool | None = None, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> BeliefPage:
    """Return a page of tasks: all, those that were played, or the others.

    Raises OtherSnapshot, and ValidationProblem on a cursor that is not one.
    """
    after = -1 if cursor is None else _position(cursor)
    core = _core(run)
    plan, belief = core.plan.tasks, core.state.choice.belief
    as_of = belief.columns()[2]
    was_played = as_of > 0 if len(as_of) else np.zeros(plan.chosen_from, bool)
    chosen = np.flatnonzero(was_played == played) if played is not None else np.arange(plan.chosen_from)
    found = chosen[chosen > after][: limit + 1].tolist()
    shown = found[:limit]
    return BeliefPage(
        sampler=plan.sampler.options.type,
        tasks=plan.chosen_from,
        played=int(np.count_nonzero(was_played)),
        steps=core.state.step,
        summary=plan.sampler.of_set(belief, plan.chosen_from) if plan.chosen_from else "",
        count=len(chosen),
        rows=[
            {
                "task": task,
                "played_after": int(as_of[task]) if len(as_of) and as_of[task] else None,
                "belief": plan.sampler.of_task(belief, task),
            }
            for task in shown
        ],
        next=Cursor(_ORDERING, False, [shown[-1]]).encode() if len(found) > limit else None,
    )


def _core(run: Run) -> Orchestrator:
    stored = runs.load_run(store_connection(), run.no)
    try:
        spec = ExperimentSpec.model_validate(stored.spec)
        if stored.snapshot is None:
            return Orchestrator(spec)
        return Orchestrator.restore(spec, zstandard.decompress(stored.snapshot))
    except ValueError as other:
        raise OtherSnapshot(f"{run.key} is of another version, or of a plug-in that is gone: {other}") from other


def _position(cursor: str) -> int:
    [value] = decode(cursor, _ORDERING).values
    if not isinstance(value, int) or value < 0:
        detail = "The cursor is invalid here."
        hint = "Omit it to begin with the first task."
        raise ValidationProblem(detail, errors=[FieldError("cursor", "not_a_cursor", detail, hint, "query")])
    return value
