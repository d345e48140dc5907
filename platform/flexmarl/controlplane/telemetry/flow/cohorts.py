"""Cohorts of a run: how far each is, what it pins, what it lost on the way and what it waits for.

A cohort is *open* until a worker takes a part of it, *playing* until every group is settled, *settled* until its rows
are cut, *cut* until every policy's rows are applied, then *applied*. One whose run ended before that is *abandoned*.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.redundancies import Beyond
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.reads import cohort_rows
from flexmarl.store.reads.cohort_rows import CohortBatches, CohortGroups

DEFAULT_LIMIT = 20
MAX_LIMIT = 200


class CohortState(StrEnum):
    OPEN = "open"
    PLAYING = "playing"
    SETTLED = "settled"
    CUT = "cut"
    APPLIED = "applied"
    ABANDONED = "abandoned"


_RULED_OUT = (RulingKind.GROUP_REFUSED, RulingKind.GROUP_DROPPED, RulingKind.GROUP_SURPLUS)
UNDER_WAY = frozenset({CohortState.OPEN, CohortState.PLAYING, CohortState.SETTLED, CohortState.CUT})


def cohorts(
    run: Run, before: int | None = None, limit: int = DEFAULT_LIMIT, states: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return cohorts below a number, newest first; of a range of `limit` numbers those in the states asked for.

    `next_before` is the number to go on below, None at the end.
    """
    conn = store_connection()
    high = cohort_rows.newest(conn, run.no) if before is None else before - 1
    low = max(0, high - limit + 1)
    if high < 0:
        return {"results": [], "next_before": None, "seq": run.state.seq}
    cut, ruled = cohort_rows.batches(conn, run.no, low, high), cohort_rows.rulings(conn, run.no, low, high)
    ended, enough = RunStatus(run.state.status) in TERMINAL, _enough(run)
    rows = []
    for found in cohort_rows.groups(conn, run.no, low, high):
        own = [batch for batch in cut if batch.cohort == found.cohort]
        counts = {ruling.kind: ruling.count for ruling in ruled if ruling.cohort == found.cohort}
        rows.append(_row(found, own, counts, ended=ended, enough=enough))
    shown = [row for row in rows if states is None or row["state"] in states]
    return {"results": shown, "next_before": low if low > 0 else None, "seq": run.state.seq}


def _enough(run: Run) -> int | None:
    """Return how many kept groups settle a cohort of the run; None where each of its groups is waited for."""
    spec = ExperimentSpec.model_validate(run.spec)
    return spec.batch.tasks_per_step if Beyond.GROUPS in spec.mechanisms.redundancy.beyond else None


def _row(
    found: CohortGroups, own: Sequence[CohortBatches], ruled: dict[str, int], *, ended: bool, enough: int | None
) -> dict[str, Any]:
    state = state_of(found, own, ruled, ended=ended)
    return {
        "cohort": found.cohort,
        "step": found.cohort + 1,
        "state": state.value,
        "pins": found.pins,
        "groups": found.groups,
        "groups_settled": found.settled,
        "groups_open": max(0, found.groups - found.settled),
        "groups_refused": ruled.get(RulingKind.GROUP_REFUSED, 0),
        "groups_dropped": ruled.get(RulingKind.GROUP_DROPPED, 0),
        "groups_surplus": ruled.get(RulingKind.GROUP_SURPLUS, 0),
        "episodes": found.episodes,
        "episodes_failed": found.failed,
        "policies": [_policy(batch) for batch in own],
        "waits_for": waits_for(found, own, ruled, enough) if state in UNDER_WAY else "",
        "opened_at": _moment(found.opened_at),
        "settled_at": _moment(found.settled_at) if found.settled >= found.groups else None,
        "applied_at": _moment(_applied_at(own)) if state is CohortState.APPLIED else None,
    }


def _applied_at(own: Sequence[CohortBatches]) -> float | None:
    return max((batch.done_at for batch in own if batch.done_at is not None), default=None)


def _policy(batch: CohortBatches) -> dict[str, Any]:
    return {
        "policy": batch.policy,
        "rows": batch.rows,
        "replayed": batch.replayed,
        "imported": batch.imported,
        "micro_batches": batch.cut + batch.accumulated + batch.applied + batch.void,
        "cut": batch.cut,
        "accumulated": batch.accumulated,
        "applied": batch.applied,
        "void": batch.void,
        "version": batch.version,
    }


def state_of(
    found: CohortGroups, own: Sequence[CohortBatches], ruled: dict[str, int], *, ended: bool = False
) -> CohortState:
    """Tell how far a cohort is. A settled one whose every group was ruled out has nothing to train: it is applied."""
    open_groups = _is_open(found, ruled)
    waiting = any(batch.cut or batch.accumulated for batch in own)
    done = any(batch.applied for batch in own) and not waiting
    out = sum(ruled.get(kind, 0) for kind in _RULED_OUT)
    if not open_groups and (done or out >= found.groups):
        return CohortState.APPLIED
    if ended:
        return CohortState.ABANDONED
    if open_groups:
        return CohortState.OPEN if found.taken_at is None else CohortState.PLAYING
    return CohortState.CUT if waiting else CohortState.SETTLED


def _is_open(found: CohortGroups, ruled: dict[str, int]) -> bool:
    """Tell whether groups are waited for. One that settled with enough waits for none: its surplus plays on."""
    return found.settled < found.groups and not ruled.get(RulingKind.COHORT_SETTLED, 0)


def waits_for(
    found: CohortGroups, own: Sequence[CohortBatches], ruled: dict[str, int], enough: int | None = None
) -> str:
    """Say what a cohort under way waits for first, as the pipeline goes: groups, gradients, steps.

    With redundancy it waits for `enough` kept groups, whichever they are.
    """
    if _is_open(found, ruled):
        left = found.groups - found.settled
        if enough is None or enough >= found.groups:
            return f"{left} of {found.groups} episode groups"
        kept = found.settled - sum(ruled.get(kind, 0) for kind in _RULED_OUT)
        return f"{min(left, max(1, enough - kept))} more of {found.groups} episode groups, {enough} are needed"
    for batch in own:
        if batch.cut:
            return f"gradients of {batch.policy}: {batch.accumulated} of {batch.cut + batch.accumulated} micro-batches"
    stepping = [batch.policy for batch in own if batch.accumulated]
    if stepping:
        return f"the optimizer step of {', '.join(stepping)}"
    return "its rows to be cut" if not own else ""


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(datetime.fromtimestamp(seconds, UTC))
