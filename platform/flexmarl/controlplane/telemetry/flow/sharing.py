"""What a run exchanged with other installations, as its rollout workers tell it."""

from typing import Any

from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.telemetry import sharing_reports

SILENT = "silent"


def sharing(run: Run) -> dict[str, Any] | None:
    """Return the run's exchange, None for a run that does not share.

    `state`: `connected`, why the exchange was lost, `silent` where no rollout worker has told lately, or `ended`.
    """
    options = run.spec["sampling"].get("sharing") or {}
    if options.get("type") != "exchange":
        return None
    found = sharing_reports.read_totals(store_connection(), run.no)
    ended = RunStatus(run.state.status) in TERMINAL
    return {
        "state": "ended" if ended else found.state if found.fresh else SILENT,
        "reason": found.reason,
        "task_set": options["task_set"],
        "foreign": options["foreign"],
        "publishes": options["publish"],
        "published": found.published,
        "received": found.received,
        "used": found.used,
        "refused": sorted(found.refused.items(), key=lambda one: (-one[1], one[0])),
    }
