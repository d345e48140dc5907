"""The four events that move a policy's data, newest first: ready, backward, step, publish, with time and owner."""

from datetime import datetime
from typing import Any

from flexmarl.controlplane.common.api.pagination import Cursor, decode
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.reads import transitions as store
from flexmarl.store.reads.transitions import Transition, TransitionFilter, TransitionPosition

KINDS = store.KINDS
DEFAULT_LIMIT = 50
MAX_LIMIT = 500
_ORDERING = "-seq,-cut_at,-policy,-no"


def transitions(
    run: Run, wanted: TransitionFilter, cursor: str | None = None, limit: int = DEFAULT_LIMIT
) -> dict[str, Any]:
    """Return a page. Raises ValidationProblem on a cursor that is not one."""
    before = TransitionPosition() if cursor is None else _position(cursor)
    found = store.page(store_connection(), run.no, wanted, before, limit + 1)
    shown = found[:limit]
    after = store.behind(shown, before)
    following = Cursor(_ORDERING, False, [after.seq, after.cut_at, after.policy, after.no]).encode()
    return {"results": [_row(row) for row in shown], "next": following if len(found) > limit else None}


def _position(cursor: str) -> TransitionPosition:
    seq, cut_at, policy, no = decode(cursor, _ORDERING).values
    legal = isinstance(seq, int) and isinstance(cut_at, datetime) and isinstance(policy, str) and isinstance(no, int)
    if not (legal and 0 <= seq <= TransitionPosition().seq and 0 <= no < 2**31):
        detail = "The cursor is invalid here."
        hint = "Omit it to begin with the newest transitions."
        raise ValidationProblem(detail, errors=[FieldError("cursor", "not_a_cursor", detail, hint, "query")])
    return TransitionPosition(seq, cut_at, policy, no)


def _row(row: Transition) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "policy": row.policy,
        "at": rfc3339(row.at),
        "owner": row.owner,
        "version": row.version,
        "cohort": row.cohort,
        "micro_batch": row.micro_batch,
        "rows": row.rows,
        "event": row.seq,
    }
