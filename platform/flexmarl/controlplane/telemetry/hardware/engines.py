"""The engines of a run, each with its state, what it serves and what it told last; and who was given which place."""

from collections.abc import Sequence
from typing import Any

from flexmarl.controlplane.common.api.pagination import Cursor, decode
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.reads import engine_moves, engine_rows
from flexmarl.store.reads.engine_moves import EngineMove, EngineMovePosition
from flexmarl.store.reads.engine_rows import EngineFigures, EngineRow

MOVE_KINDS = engine_moves.KINDS
DEFAULT_LIMIT = 50
MAX_LIMIT = 200
_ORDERING = "-seq,-ord"


def engines(run: Run, states: Sequence[str] = (), policies: Sequence[str] = ()) -> list[dict[str, Any]]:
    """List a run's engines, the living ones first; a filter that is empty means any."""
    rows = [_engine(row) for row in engine_rows.engines(store_connection(), run.no, ended_at(run))]
    return [row for row in rows if _wanted(row, states, policies)]


def _wanted(row: dict[str, Any], states: Sequence[str], policies: Sequence[str]) -> bool:
    about = {served["policy"] for served in row["serves"]} | {load["policy"] for load in row["loading"]}
    return (not states or row["state"] in states) and (not policies or not about.isdisjoint(policies))


def ended_at(run: Run) -> float | None:
    """Return when a run ended, in seconds since the epoch; None while it goes on."""
    finished = run.state.finished_at
    return finished.timestamp() if finished else None


def _engine(row: EngineRow) -> dict[str, Any]:
    return {
        "lease_id": row.lease_id,
        "device_id": row.device_id,
        "devices": list(row.devices),
        "node": row.node,
        "kind": row.kind,
        "state": row.state.value,
        "suspect": row.doubt.value,
        "incarnation": row.incarnation,
        "granted_at": rfc3339(from_epoch(row.granted_at)),
        "ended_at": None if row.ended_at is None else rfc3339(from_epoch(row.ended_at)),
        "reason": row.reason,
        "losses": row.losses,
        "lost_at": None if row.lost_at is None else rfc3339(from_epoch(row.lost_at)),
        "lost_reason": row.lost_reason,
        "serves": [{"policy": s.policy, "version": s.version, "former_version": s.former} for s in row.serves],
        "loading": [{"policy": policy, "version": version} for policy, version in row.loading],
        "leaving": list(row.leaving),
        "load": None if row.told is None else _load(row.told),
    }


def _load(told: EngineFigures) -> dict[str, Any]:
    return {
        "age_s": round(told.age_s, 1),
        "running": told.running,
        "waiting": told.waiting,
        "slots": told.slots,
        "cache_use": told.cache_use,
        "hit_rate": told.hit_rate,
        "tokens_per_s": told.tokens_per_s,
    }


def moves(
    run: Run,
    kinds: Sequence[str] = (),
    policies: Sequence[str] = (),
    cursor: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> dict[str, Any]:
    """Return a page of places given and moved, newest first. Raises ValidationProblem on a cursor that is not one."""
    before = EngineMovePosition() if cursor is None else _position(cursor)
    found = engine_moves.page(store_connection(), run.no, kinds, policies, before, limit + 1)
    shown = found[:limit]
    last = Cursor(_ORDERING, False, [shown[-1].seq, shown[-1].ord]).encode() if len(found) > limit else None
    return {"results": [_move(row) for row in shown], "next": last}


def _position(cursor: str) -> EngineMovePosition:
    values = decode(cursor, _ORDERING).values
    if not all(isinstance(value, int) and 0 <= value <= EngineMovePosition().seq for value in values):
        detail = "The cursor is invalid here."
        hint = "Omit it to begin with the newest moves."
        raise ValidationProblem(detail, errors=[FieldError("cursor", "not_a_cursor", detail, hint, "query")])
    return EngineMovePosition(*values)


def _move(row: EngineMove) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "at": rfc3339(from_epoch(row.at)),
        "kind": row.kind,
        "cause": row.cause,
        "policy": row.policy,
        "out": row.out,
        "lease_id": row.lease_id,
        "device_id": row.device_id,
        "reason": row.reason,
        "load_s": row.load_s,
        "until_served_s": row.until_served_s,
    }
