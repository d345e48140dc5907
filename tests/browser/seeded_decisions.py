"""Why seeded runs did what they did: reasons of their commands, rulings on groups and rows, and how old rows were."""

from typing import Any

from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.rulings import Ruling, RulingKind
from flexmarl.store.control.decisions import Logged, _write_metrics, _write_rulings
from tests.browser.seeded_pipeline import GROUPS, STEPS

REASONS = {
    "play_groups": "4 groups of the cohort are open, pinned to the committed vector",
    "cut_micro_batch": "1 kept group gives 8 rows",
    "accumulate": "the micro-batch is cut and the accumulator is open",
    "optimizer_step": "the cohort is complete: 4 micro-batches accumulated",
    "load_weights": "atlas.cpu0 holds the version before, the committed one is to be served",
}
HOSTILE = "<img src=x onerror=alert(1)> " + "and a reason that is longer than any line of the table has room for, " * 2


ROWS = 16
"""Rows of a policy in a group."""


def _never_cut(conn: Any, run_no: int, roles: list[str], no: int) -> None:
    """Take a micro-batch back whose group was ruled out."""
    conn.execute(
        "DELETE FROM store.micro_batch WHERE run_id = %s AND policy = ANY(%s) AND no = %s", [run_no, roles, no]
    )


def decisions(conn: Any, run_no: int, roles: list[str], steps: int, start: float) -> None:
    """Write what the newest steps were decided on; of the oldest one a group is refused and rows are dropped."""
    for kind, reason in REASONS.items():
        conn.execute("UPDATE store.command SET reason = %s WHERE run_id = %s AND kind = %s", [reason, run_no, kind])
    cohort = max(0, steps - STEPS)
    first = cohort * GROUPS
    _never_cut(conn, run_no, roles, 0)
    _never_cut(conn, run_no, roles[:1], 1)
    lines = [
        Logged(
            3,
            start,
            Ruling(RulingKind.GROUP_REFUSED, f"group {first} refused: {HOSTILE}", "", cohort, f"draw:{first}", 48),
        ),
        Logged(
            3, start, Ruling(RulingKind.ROWS_DROPPED, "too old", roles[0], cohort, f"draw:{first + 1}", ROWS, "stale")
        ),
        Logged(3, start, Ruling(RulingKind.COHORT_SETTLED, "every group is settled: 3 kept, 1 refused", "", cohort)),
    ]
    _write_rulings(conn, run_no, lines)
    points = [
        (start + step, Metric(name, step, float(value), role, stat))
        for step in range(max(1, steps - 20), steps + 1)
        for role in roles
        for name, stat, value in (("staleness/start", "p99", 0), ("staleness/own_max", "max", 0))
    ]
    _write_metrics(conn, run_no, points)
