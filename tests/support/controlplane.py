"""What tests of the control plane share: a small specification, runs in any state, keys."""

import uuid
from typing import Any

from django.db import connection

from flexmarl.controlplane.runs.models import Run

SPEC: dict[str, Any] = {
    "name": "code words",
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
}
PASSWORD = "correct-horse-battery"


def set_state(run: Run, **columns: Any) -> None:
    """Put a run's live state where the driver would have brought it."""
    names = ", ".join(f"{name} = %s" for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE store.run_state SET {names} WHERE run_id = %s", [*(str(v) for v in columns.values()), run.no]
        )


def key() -> str:
    """Return a new idempotency key."""
    return str(uuid.uuid4())
