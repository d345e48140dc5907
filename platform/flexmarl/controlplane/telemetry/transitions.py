"""The four events that move a policy's data, newest first: ready, backward, step, publish, with time and owner."""

from collections.abc import Sequence
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.store import transitions as store
from flexmarl.store.transitions import Transition

KINDS = store.KINDS
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000


def transitions(run: Run, kinds: Sequence[str], policies: Sequence[str], limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """Return the newest transitions, of all kinds and policies where none are named."""
    found = store.transitions(store_connection(), run.no, kinds=kinds, policies=policies, limit=limit)
    return {"results": [_row(row) for row in found], "seq": run.state.seq}


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
