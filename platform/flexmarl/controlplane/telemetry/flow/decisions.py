"""What was decided in a run and why, newest first: commands to workers, and rulings on rows and cohorts."""

from typing import Any

from flexmarl.contracts.commands import COMMAND_KINDS
from flexmarl.contracts.rulings import RulingKind
from flexmarl.controlplane.common.api.pagination import Cursor, decode
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.reads import decision_log
from flexmarl.store.reads.decision_log import NEWEST, DecisionFilter, DecisionPosition, DecisionRow

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
KINDS = (*COMMAND_KINDS, *(kind.value for kind in RulingKind))
_ORDERING = "-command,-seq,-ord"


def decisions(
    run: Run, wanted: DecisionFilter, cursor: str | None = None, limit: int = DEFAULT_LIMIT
) -> dict[str, Any]:
    """Return a page. Raises ValidationProblem on a cursor that is not one."""
    before = DecisionPosition()
    if cursor is not None:
        before = _position(cursor)
    found = decision_log.page(store_connection(), run.no, wanted, before, limit + 1)
    shown = found[:limit]
    after = decision_log.behind(shown, before)
    following = Cursor(_ORDERING, False, [after.command, after.seq, after.ord]).encode()
    return {
        "results": [_row(row) for row in shown],
        "next": following if len(found) > limit else None,
        "seq": run.state.seq,
    }


def _position(cursor: str) -> DecisionPosition:
    values = decode(cursor, _ORDERING).values
    if not all(isinstance(value, int) and 0 <= value <= NEWEST for value in values):
        detail = "The cursor is invalid here."
        hint = "Omit it to begin with the newest decisions."
        raise ValidationProblem(detail, errors=[FieldError("cursor", "not_a_cursor", detail, hint, "query")])
    return DecisionPosition(*values)


def _row(row: DecisionRow) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "event": row.event,
        "at": rfc3339(from_epoch(row.at)),
        "type": "command" if row.command else "ruling",
        "kind": row.kind,
        "command": row.place if row.command else None,
        "policy": row.policy,
        "cohort": row.cohort,
        "target": row.target,
        "reason": row.reason,
        "cause": row.cause,
        "rows": row.rows,
        "status": row.status,
        "error": row.error,
    }
