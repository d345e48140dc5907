"""What the experience store holds of a run: rows per policy by place, bytes, and the tables they lie in."""

from dataclasses import asdict
from typing import Any

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.reads import places
from flexmarl.store.reads.places import RowCounts


def store_state(run: Run) -> dict[str, Any]:
    """Count a run's rows and bytes. Reads every row's place, so a page of a large run asks for it on demand."""
    conn = store_connection()
    spec = ExperimentSpec.model_validate(run.spec)
    untrained = [role for role, agent in spec.agents.items() if not agent.trainable]
    ended = RunStatus(run.state.status) in TERMINAL
    rows = [_row(found, ended) for found in places.places(conn, run.no, untrained)]
    tables = [asdict(found) for found in places.partitions(conn, run.no)]
    return {
        "policies": rows,
        "rows": sum(row["written"] for row in rows),
        "payload_bytes": sum(row["payload_bytes"] for row in rows),
        "rows_by_reference": sum(row["by_reference"] for row in rows),
        "segments": places.segments(conn, run.no),
        "tables": tables,
        "size_bytes": sum(table["size_bytes"] for table in tables),
        "accounted": all(row["missing"] == 0 for row in rows),
        "seq": run.state.seq,
    }


def _row(found: RowCounts, ended: bool) -> dict[str, Any]:
    """Return one policy's rows. Nothing waits for its cut in a run that has ended: it was left, and stays recorded."""
    waiting = max(0, found.ready)
    return {
        **asdict(found),
        "ready": 0 if ended else waiting,
        "left": waiting if ended else 0,
        "recorded": found.recorded + (waiting if ended else 0),
        "missing": max(0, -found.ready),
    }
