"""Figures of a run derived from its rows, and the promises checked on them.

Invariant: nothing here is a counter kept beside the rows. Every check compares two independent sources and shows both
numbers, so that a failed line says what is missing. The rows are read in ranges (`report_rows`), in one consistent
view: no statement is longer than its range, however long the run.
"""

from dataclasses import dataclass

from psycopg import Connection
from psycopg.pq import TransactionStatus

from flexmarl.store.reads.report_rows import Progress, RunCounts, nobody, tally


@dataclass(frozen=True, slots=True)
class Counts:
    events: int
    waiting_events: int
    commands: int
    open_commands: int
    episodes: int
    samples: int
    tokens: int
    micro_batches_cut: int
    micro_batches_accumulated: int
    micro_batches_applied: int
    micro_batches_void: int
    samples_trained: int
    rows_replayed: int
    """Of steps that earlier ones were taken on as well; none of them is in `samples_trained` again."""
    rows_replayed_imported: int
    """Of them: rows of another run, on which no earlier step was taken."""
    versions: int


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """One promise. `expected` and `found` are what two sources say."""

    name: str
    ok: bool
    expected: int
    found: int
    detail: str


@dataclass(frozen=True, slots=True)
class PromiseReport:
    """Every promise, and how many rows there are. `seq` is the last event of the view they were read in."""

    checks: list[PromiseCheck]
    counts: Counts
    seq: int


def counts(conn: Connection, run_id: int) -> Counts:
    """Count a run's rows."""
    return full_report(conn, run_id).counts


def consistency_report(conn: Connection, run_id: int) -> list[PromiseCheck]:
    """Check the store's promises on a run, in one consistent view of the rows."""
    return full_report(conn, run_id).checks


def full_report(conn: Connection, run_id: int, progress: Progress = nobody) -> PromiseReport:
    """Check the promises and count the rows. `progress` hears between statements how far it is, and may raise."""
    alone = conn.info.transaction_status == TransactionStatus.IDLE
    with conn.transaction():
        if alone:  # inside a caller's transaction the view is the caller's choice
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        found = tally(conn, run_id, progress)
    checks = [
        PromiseCheck(name, expected == shown, expected, shown, _DETAILS[name])
        for name, (expected, shown) in _compared(found).items()
    ]
    return PromiseReport(checks, _counts(found), found.state.seq)


_DETAILS = {
    "log_gapless": "events in the log = newest sequence number",
    "episodes_accounted": "proposed = finished + failed + cancelled (+ still in flight while the run lives)",
    "episode_rows_match_log": "episodes told by events, handled or waiting = episode rows",
    "sample_rows_match_log": "samples told by events, handled or waiting, and not retired = sample rows",
    "groups_complete": (
        "settled draws with a row for every member that was ordered; where episodes settle, with no more than those"
    ),
    "none_trained_twice": "rows applied = distinct samples applied, per policy",
    "trained_samples_exist": "rows applied = sample rows behind them, of the same policy",
    "payloads_registered": "samples by reference = those whose segment is known and not retired",
    "own_lag_within_bound": (
        "rows applied = rows whose own lag is within the bound, or whose policy trains what is older"
    ),
    "replayed_once_per_step": "replayed rows applied = distinct rows of the archive in each step, over all steps",
    "replayed_were_trained": (
        "replayed rows applied = those on which a first step was taken, per policy, or that were imported"
    ),
    "replayed_within_age": (
        "replayed rows with a sample = those no older than sampling.replay.max_age; imported ones are as old as "
        "version 0"
    ),
    "imported_rows_match_log": "imported rows told by events, handled or waiting, and not retired = their sample rows",
    "steps_match_log": "steps in the log or waiting = versions with a parent",
    "versions_chain": "versions = versions whose parent is the one before",
    "applied_belong_to_steps": "applied micro-batches = those whose version is committed",
    "ended_run_is_closed": "0 = micro-batches cut or accumulated, leases held, or attempts open, in an ended run",
}


def _compared(found: RunCounts) -> dict[str, tuple[int, int]]:
    """Put what two sources say side by side, check by check."""
    state, log, rows, batches = found.state, found.log, found.rows, found.batches
    again = batches.replayed
    settled = state.settled
    if state.live:
        settled = max(settled, min(state.proposed, settled + found.in_flight))
    left_open = batches.cut + batches.accumulated + found.held_leases + found.open_attempts
    return {
        "log_gapless": (state.seq, log.events),
        "episodes_accounted": (state.proposed, settled),
        "episode_rows_match_log": (log.episodes, rows.episodes),
        "sample_rows_match_log": (log.samples, rows.samples),
        "groups_complete": (found.groups, found.groups_complete),
        "none_trained_twice": (batches.keys, batches.distinct),
        "trained_samples_exist": (batches.kept, batches.behind),
        "payloads_registered": (rows.by_reference, rows.registered),
        "own_lag_within_bound": (batches.joined, batches.within),
        "replayed_once_per_step": (again.rows, again.once),
        "replayed_were_trained": (again.rows, again.known),
        "replayed_within_age": (again.kept, again.young),
        "imported_rows_match_log": (log.imported, rows.imported),
        "steps_match_log": (log.steps, found.versions_with_parent),
        "versions_chain": (found.versions, found.versions_chained),
        "applied_belong_to_steps": (batches.applied, batches.committed),
        "ended_run_is_closed": (0, 0 if state.live else left_open),
    }


def _counts(found: RunCounts) -> Counts:
    return Counts(
        events=found.log.events,
        waiting_events=found.waiting_events,
        commands=found.commands,
        open_commands=found.open_commands,
        episodes=found.rows.episodes,
        samples=found.rows.samples,
        tokens=found.rows.tokens,
        micro_batches_cut=found.batches.cut,
        micro_batches_accumulated=found.batches.accumulated,
        micro_batches_applied=found.batches.applied,
        micro_batches_void=found.batches.void,
        samples_trained=found.batches.trained,
        rows_replayed=found.batches.replayed.rows,
        rows_replayed_imported=found.batches.replayed.imported,
        versions=found.versions,
    )
