"""Whether a run's rows agree with what its log led to. Looked at whenever a driver takes a run up.

Invariant: a difference that a fact still in the inbox will explain is none. What is left means that a row or a fact was
lost, changed or added behind the driver's back; such a run is stopped in words instead of trained on.
"""

from collections.abc import Iterator, Mapping

from psycopg import Connection

from flexmarl.contracts.commands import COMMAND_KINDS, Route
from flexmarl.contracts.status import TERMINAL
from flexmarl.orchestrator.state.tree import RunState
from flexmarl.store.control import reconciliation
from flexmarl.store.control.reconciliation import CommandRow, CommittedState
from flexmarl.store.control.runs import StoredEvent, StoredRun

_LIVES_WITH_ITS_LEASE = "host_lease"
_ENDS_AFTER_ITS_FACTS = "play_groups"
"""The worker ends the command after the fact of its last group: its row may be behind the log."""
SHOWN = 5
"""Differences named in words."""


def differences(
    conn: Connection, stored: StoredRun, tail: list[StoredEvent], state: RunState, rows: CommittedState
) -> list[str]:
    """Say in words where rows and log differ; empty when they agree. An ended run is compared no more."""
    if stored.status in TERMINAL:
        return []
    known = {command.no: command.kind for command in state.outstanding.values()}
    found = [
        *_log(stored, tail),
        *_numbers(state, rows),
        *_unknown_commands(known, rows),
        *_known_commands(known, reconciliation.rows_of(conn, stored.run_id, list(known)), rows.waiting),
        *_versions(state, rows),
        *_leases(state, rows),
    ]
    return found


def in_words(found: list[str]) -> str:
    """Join differences to one line."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "rows and log differ: " + "; ".join(found[:SHOWN]) + more


def _log(stored: StoredRun, tail: list[StoredEvent]) -> Iterator[str]:
    expected = list(range(stored.snapshot_seq + 1, stored.seq + 1))
    if [entry.seq for entry in tail] != expected:
        yield f"the log should hold events {stored.snapshot_seq + 1} to {stored.seq} and {len(tail)} are there"


def _numbers(state: RunState, rows: CommittedState) -> Iterator[str]:
    if rows.last_command + 1 != state.numbers.command:
        yield f"the last command is {rows.last_command}, the log decided {state.numbers.command - 1}"
    for name, policy in state.policies.items():
        number = rows.next_micro_batches.get(name, 0)
        if number != policy.next_micro_batch:
            yield f"{name} has {number} micro-batches, the log cut {policy.next_micro_batch}"


def _unknown_commands(known: Mapping[int, str], rows: CommittedState) -> Iterator[str]:
    for no, kind in rows.under_way.items():
        if no not in known and kind not in (_LIVES_WITH_ITS_LEASE, _ENDS_AFTER_ITS_FACTS):
            yield f"command {no} ({kind}) is in progress but not in the log"


def _known_commands(
    known: Mapping[int, str], found: Mapping[int, CommandRow], waiting: frozenset[str]
) -> Iterator[str]:
    for no, kind in known.items():
        row = found.get(no)
        if row is None:
            yield f"command {no} ({kind}) has no row"
        elif row.kind != kind:
            yield f"command {no} is {row.kind}, the log decided {kind}"
        elif row.status == "void":
            yield f"command {no} ({kind}) is void, but the log waits for it"
        elif row.status in ("done", "failed") and _ends_with_its_fact(kind) and not waiting:
            yield f"command {no} ({kind}) is {row.status} but no event reports it"


def _ends_with_its_fact(kind: str) -> bool:
    """Tell whether rows of a kind end in the transaction that puts their fact in the inbox."""
    return COMMAND_KINDS[kind].route is Route.NODE


def _versions(state: RunState, rows: CommittedState) -> Iterator[str]:
    if rows.waiting & {"step_committed", "policy_bound"}:
        return
    for name, policy in state.policies.items():
        version, digest = rows.versions.get(name, (None, ""))
        if version != policy.version:
            yield f"{name} is committed at version {version}, the log at {policy.version}"
        elif version is not None and digest != policy.digest:
            yield f"{name} version {version} has digest {digest[:12]}, the log {policy.digest[:12]}"


def _leases(state: RunState, rows: CommittedState) -> Iterator[str]:
    if "devices_granted" not in rows.waiting:
        held = {lease_id for lease_id, now in rows.leases.items() if now == "held"}
        for lease_id in sorted(held - state.fleet.leases.keys()):
            yield f"lease {lease_id} belongs to the run but is not in the log"
    if "lease_ended" not in rows.waiting:
        for lease_id in sorted(state.fleet.leases.keys() - rows.leases.keys()):
            yield f"lease {lease_id} has ended but no event reports it"
