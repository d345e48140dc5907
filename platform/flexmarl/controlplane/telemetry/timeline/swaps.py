"""Which policies came to which trainer devices, and left them."""

from collections.abc import Sequence
from typing import Any

from flexmarl.controlplane.common.api.pagination import MOST_NUMBER, Cursor, decode
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.reads import swaps as stored
from flexmarl.store.reads.swaps import Swap, SwapPosition

PHASES = stored.PHASES
DEFAULT_LIMIT = 50
MAX_LIMIT = 200
_ORDERING = "-t1,-lease_id,-ord"


def swaps(
    run: Run,
    phases: Sequence[str] = (),
    policies: Sequence[str] = (),
    cursor: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> dict[str, Any]:
    """Return a page of swaps, newest first. Raises ValidationProblem on a cursor that is not one."""
    before = SwapPosition() if cursor is None else _position(cursor)
    found = stored.page(store_connection(), run.no, phases, policies, before, limit + 1)
    shown = found[:limit]
    more = len(found) > limit
    last = Cursor(_ORDERING, False, [shown[-1].ended, shown[-1].lease_id, shown[-1].ord]).encode() if more else None
    return {"results": [_swap(row) for row in shown], "next": last}


def _position(cursor: str) -> SwapPosition:
    ended, lease_id, place = decode(cursor, _ORDERING).values
    if (
        isinstance(ended, int | float)
        and abs(ended) < MOST_NUMBER
        and isinstance(lease_id, int)
        and isinstance(place, int)
    ):
        return SwapPosition(float(ended), lease_id, place)
    detail = "The cursor is invalid here."
    hint = "Omit it to begin with the newest swaps."
    raise ValidationProblem(detail, errors=[FieldError("cursor", "not_a_cursor", detail, hint, "query")])


def _swap(row: Swap) -> dict[str, Any]:
    return {
        "at": rfc3339(from_epoch(row.began)),
        "phase": row.phase,
        "policy": row.policy,
        "lease_id": row.lease_id,
        "device_id": row.device_id,
        "seconds": round(row.ended - row.began, 4),
        "bytes": row.bytes,
    }
