"""What rollout workers exchanged with other installations for a run, as they tell it, and which contents were used.

Invariants: a content is used once in a run, by whichever worker claims it first; a report takes the place of the one
that the same worker told before. Claims are part of a run's history and go with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from psycopg import Connection

from flexmarl.store.node_operations import for_nodes, run_with_work

FRESH_S = 60.0
"""What a worker said of the exchange counts as its present for so long."""


@dataclass(frozen=True, slots=True)
class SharingReport:
    """Counts over the life of one rollout worker, and how it stands with the exchange."""

    state: str
    """`connected`, or why not."""
    reason: str
    published: int
    """Rollouts that the exchange took from this run."""
    received: int
    """Rollouts of others that were read."""
    used: int
    """Of these, members of groups."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rollouts that were not."""


@for_nodes(run_with_work("run_id"))
def put_report(conn: Connection, run_id: int, worker: str, report: SharingReport) -> None:
    """Store what a rollout worker exchanged so far."""
    conn.execute(
        """
        INSERT INTO store.sharing (run_id, worker, at, state, reason, published, received, used, refused)
        VALUES (%s, %s, clock_timestamp(), %s, %s, %s, %s, %s, %s::jsonb)
        ON CONFLICT (run_id, worker) DO UPDATE SET at = excluded.at, state = excluded.state, reason = excluded.reason,
          published = excluded.published, received = excluded.received, used = excluded.used, refused = excluded.refused
        """,
        [
            run_id, worker, report.state, report.reason[:300], report.published, report.received, report.used,
            orjson.dumps(dict(report.refused)).decode(),
        ],
    )  # fmt: skip


@for_nodes(run_with_work("run_id"))
def claim(conn: Connection, run_id: int, digests: Sequence[str]) -> list[str]:
    """Use contents; returns those that nobody of the run has used before."""
    rows = conn.execute(
        "INSERT INTO store.shared_rollout (run_id, digest) SELECT %s, d FROM unnest(%s::text[]) AS d "
        "ON CONFLICT DO NOTHING RETURNING digest",
        [run_id, list(digests)],
    ).fetchall()
    return [digest for (digest,) in rows]


@dataclass(frozen=True, slots=True)
class SharingTotals:
    """Sums over all rollout workers of a run, and what the last one said of the exchange."""

    told: bool
    """Whether any worker has said something."""
    fresh: bool
    """Whether any did lately."""
    state: str
    reason: str
    published: int
    received: int
    used: int
    refused: Mapping[str, int]


def read_totals(conn: Connection, run_id: int) -> SharingTotals:
    """Read what a run's workers exchanged."""
    rows = conn.execute(
        "SELECT state, reason, published, received, used, refused, "
        "at > clock_timestamp() - make_interval(secs => %s) FROM store.sharing WHERE run_id = %s ORDER BY at DESC",
        [FRESH_S, run_id],
    ).fetchall()
    refused: dict[str, int] = {}
    for row in rows:
        for reason, count in row[5].items():
            refused[reason] = refused.get(reason, 0) + count
    last = rows[0] if rows else ("", "", 0, 0, 0, {}, False)
    published, received, used = (sum(row[place] for row in rows) for place in (2, 3, 4))
    return SharingTotals(bool(rows), last[6], last[0], last[1], published, received, used, refused)
