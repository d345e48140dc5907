"""One verb on many runs. Each is asked for by itself, with its own permission and state; one refusal stops no other.

A dry run does the same and takes it back, so that it cannot promise what the real one refuses.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction

from flexmarl.contracts.events import Verb
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, FieldError, NotFound, ProblemError, ValidationProblem
from flexmarl.controlplane.runs import actions, deletions, lists, queries
from flexmarl.controlplane.runs.models import Run

MOST = 500
"""Runs that one request may name or match."""
ACTIONS = (*(verb.value for verb in Verb), "archive", "restore", "tag", "untag", "move", deletions.ACTION)
_TAGGING = frozenset({"tag", "untag"})


@dataclass(frozen=True, slots=True)
class BulkAction:
    """The action to apply to each selected run, with its arguments."""

    action: str
    reason: str = ""
    tags: tuple[str, ...] = ()
    dry_run: bool = False
    experiment: str = ""
    """Name of the experiment that runs are moved to; empty: to none."""


class _TakenBack(Exception):
    """Ends a dry run's transaction."""


def act_on_ids(actor: Actor, ids: Sequence[str], action: BulkAction) -> dict[str, Any]:
    """Act on runs by id or key, in the order given, each once."""
    _check(action)
    return _answer(action, [_one_by_name(actor, reference, action) for reference in dict.fromkeys(ids)])


def act_on_matching(
    actor: Actor, members: Mapping[str, Any], expected: int | None, action: BulkAction
) -> dict[str, Any]:
    """Act on all runs that match. Raises Conflict when they are not as many as the caller saw."""
    _check(action)
    if expected is None:
        detail = "A filter needs expected_count, the number of runs that you expect it to match."
        raise ValidationProblem(detail, errors=[FieldError("/expected_count", "required", detail)])
    rows = lists.matching(queries.runs(actor), members, "/filter")
    found = list(rows[: MOST + 1])
    if len(found) > MOST:
        detail = f"The filter matches more than {MOST} runs."
        raise ValidationProblem(detail, errors=[FieldError("/filter", "too_many", detail, "Narrow it.")])
    if len(found) != expected:
        raise Conflict(
            f"The filter matches {len(found)} runs now, not {expected}.", extra={"matching_count": len(found)}
        )
    return _answer(action, [_one(actor, run, action) for run in found])


def _check(action: BulkAction) -> None:
    if (action.action in _TAGGING) != bool(action.tags):
        detail = f"{action.action} {'needs' if action.action in _TAGGING else 'takes no'} tags."
        raise ValidationProblem(detail, errors=[FieldError("/tags", "required", detail)])


def _one_by_name(actor: Actor, reference: str, action: BulkAction) -> dict[str, Any]:
    try:
        return _one(actor, queries.find_run(actor, reference), action)
    except NotFound as refused:
        return _item(reference, None, "refused", error=refused)


def _one(actor: Actor, run: Run, action: BulkAction) -> dict[str, Any]:
    operation = None
    try:
        with transaction.atomic():
            operation = _carry_out(actor, run, action)
            if action.dry_run:
                raise _TakenBack
    except _TakenBack:
        return _item(str(run.id), run.key, "would")
    except ProblemError as refused:
        return _item(str(run.id), run.key, "refused", error=refused)
    return _item(str(run.id), run.key, "done", operation)


def _carry_out(actor: Actor, run: Run, action: BulkAction) -> UUID | None:
    """Do it; return the id of the operation it begins, if it does."""
    other: Mapping[str, Callable[[], Any]] = {
        "archive": lambda: actions.archive(actor, run),
        "restore": lambda: actions.restore(actor, run),
        "tag": lambda: actions.tag(actor, run, add=action.tags),
        "move": lambda: actions.update_run(actor, run, experiment=action.experiment),
        "untag": lambda: actions.tag(actor, run, remove=action.tags),
    }
    if action.action in other:
        other[action.action]()
        return None
    if action.action == deletions.ACTION:
        return deletions.delete(actor, run, action.reason).operation
    return actions.act(actor, run, Verb(action.action), action.reason).id


def _item(
    reference: str, key: str | None, outcome: str, operation: UUID | None = None, error: ProblemError | None = None
) -> dict[str, Any]:
    return {
        "id": reference,
        "key": key,
        "outcome": outcome,
        "operation": f"/api/v1/operations/{operation}" if operation else None,
        "error": {"code": error.code, "detail": error.detail} if error else None,
    }


def _answer(action: BulkAction, items: Iterable[dict[str, Any]]) -> dict[str, Any]:
    results = list(items)
    refused = sum(item["outcome"] == "refused" for item in results)
    return {
        "action": action.action,
        "dry_run": action.dry_run,
        "count": len(results),
        "done": len(results) - refused,
        "refused": refused,
        "results": results,
    }
