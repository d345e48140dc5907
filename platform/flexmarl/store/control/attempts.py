"""Attempts of a run and the outcomes of verbs, as the core decided them.

Invariant: only the driver's decision transaction writes here; the end of an attempt and of a verb is written once.
"""

from collections.abc import Sequence
from typing import TypeVar

import orjson
from psycopg import Connection

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded, VerbEnded
from flexmarl.contracts.status import RunReason, RunStatus

VERB_KEY = "verb:"
"""Producer keys of verbs: this and the operation."""


At = TypeVar("At")
Timed = tuple[float, At]
"""A change with the time of the event that led to it, in seconds."""


def write_attempts(conn: Connection, run_id: int, changes: Sequence[Timed[AttemptBegan | AttemptEnded]]) -> None:
    """Write begins and ends, in their order."""
    for at, change in changes:
        if isinstance(change, AttemptBegan):
            conn.execute(
                "INSERT INTO store.attempt (run_id, no, epoch, verb, began_by, began_at, first_step) "
                "VALUES (%s, %s, %s, %s, %s, to_timestamp(%s), %s)",
                [run_id, change.no, change.epoch, change.verb.value, change.actor, at, change.first_step],
            )
        else:
            conn.execute(
                "UPDATE store.attempt SET ended_at = to_timestamp(%s), ended_by = %s, status = %s, reason = %s, "
                "reason_text = %s, last_step = %s, versions = %s::jsonb WHERE run_id = %s AND no = %s",
                [
                    at, change.actor, change.status.value, change.reason.value, change.reason_text,
                    change.last_step, orjson.dumps(change.versions).decode(), run_id, change.no,
                ],
            )  # fmt: skip


def write_outcomes(conn: Connection, run_id: int, outcomes: Sequence[Timed[VerbEnded]]) -> None:
    """Write how verbs ended."""
    if not outcomes:
        return
    conn.execute(
        """
        INSERT INTO store.verb_outcome (run_id, producer_key, succeeded, status, text, at)
        SELECT %s, o.key, o.succeeded, o.status, o.text, to_timestamp(o.at)
        FROM unnest(%s::text[], %s::bool[], %s::text[], %s::text[], %s::float8[]) AS o(key, succeeded, status, text, at)
        ON CONFLICT DO NOTHING
        """,
        [
            run_id, [VERB_KEY + o.operation for _, o in outcomes], [o.succeeded for _, o in outcomes],
            [o.status.value for _, o in outcomes], [o.text for _, o in outcomes], [at for at, _ in outcomes],
        ],
    )  # fmt: skip


def close(conn: Connection, run_id: int, reason: RunReason, text: str, step: int) -> None:
    """End what is open of a run that failed without its core: the attempt, and every verb without an outcome."""
    status = RunStatus.FAILED.value
    conn.execute(
        """
        UPDATE store.attempt SET ended_at = clock_timestamp(), status = %s, reason = %s, reason_text = %s,
          last_step = %s,
          versions = (SELECT coalesce(jsonb_object_agg(policy, version), '{}') FROM (
            SELECT policy, max(version) AS version FROM store.policy_version v
            WHERE v.run_id = attempt.run_id GROUP BY policy) newest)
        WHERE run_id = %s AND ended_at IS NULL
        """,
        [status, reason.value, text, step, run_id],
    )
    conn.execute(
        """
        INSERT INTO store.verb_outcome (run_id, producer_key, succeeded, status, text, at)
        SELECT run_id, producer_key, false, %s, %s, clock_timestamp() FROM store.handled h
        WHERE run_id = %s AND starts_with(producer_key, %s)
          AND NOT EXISTS (SELECT 1 FROM store.verb_outcome o
                          WHERE o.run_id = h.run_id AND o.producer_key = h.producer_key)
        """,
        [status, text, run_id, VERB_KEY],
    )
