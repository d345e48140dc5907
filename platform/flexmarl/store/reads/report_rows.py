"""One pass over every row of a run, in ranges: what the report compares.

Invariants. A statement reads one range of a key (`EVENTS`, `SAMPLES`, `EPISODES`, `BATCHES` rows), so none grows with
the run, and between two of them the caller is heard. Per row no more than a few bytes are kept, in arrays: 20 for a
trained sample, 12 for a settled group. A trained sample is known by a hash of 64 bits here; only where two are equal
are the keys themselves compared, so a doubling is never overlooked and never made up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from psycopg import Connection

from flexmarl.store.reads import report_sql as sql

Progress = Callable[[int, str], None]
"""Hears how far a report is, in parts of 1000, and what is read now. What it raises ends the report."""
Array = npt.NDArray[np.int64]
EVENTS, COMMANDS, EPISODES, SAMPLES, BATCHES = 1_000, 5_000, 20_000, 20_000, 200
"""Rows of one statement."""
_SHARES = {
    "log": (0, 300),
    "commands": (300, 350),
    "episodes": (350, 450),
    "samples": (450, 650),
    "trained": (650, 990),
}
"""Part of the whole that each pass takes."""


def nobody(done: int, now: str) -> None:
    """Hear nothing."""


@dataclass(slots=True)
class StateCounts:
    """What the run's state says of itself."""

    seq: int = 0
    proposed: int = 0
    settled: int = 0
    live: bool = False
    by_episode: bool = False
    """Groups settle episode by episode: a draw may have fewer rows than members for a while."""


@dataclass(slots=True)
class EventCounts:
    """What events say, handled or waiting; `events` counts the handled."""

    events: int = 0
    steps: int = 0
    episodes: int = 0
    samples: int = 0
    """Not counting those that were retired."""
    imported: int = 0
    """Rows of another run, likewise."""
    settled: dict[str, Array] = field(default_factory=dict)
    """`draw` and `told`: episodes that handled events told of, by draw."""
    retired: Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Draws whose samples were retired."""


@dataclass(slots=True)
class SampleCounts:
    episodes: int = 0
    samples: int = 0
    tokens: int = 0
    by_reference: int = 0
    registered: int = 0
    imported: int = 0
    """Rows of another run; they are not among the others."""


@dataclass(slots=True)
class Replayed:
    """Rows of steps that earlier ones were taken on as well."""

    rows: int = 0
    once: int = 0
    """Distinct rows of each step, all steps together."""
    known: int = 0
    """Rows that are among those which a step was taken on first, or were imported."""
    imported: int = 0
    """Rows of another run."""
    kept: int = 0
    """Rows whose samples were not retired."""
    young: int = 0
    """Of them: with a sample no older than replay allows."""


@dataclass(slots=True)
class Batches:
    """Micro-batches by status, and the keys of those that were applied."""

    cut: int = 0
    accumulated: int = 0
    applied: int = 0
    void: int = 0
    trained: int = 0
    committed: int = 0
    keys: int = 0
    distinct: int = 0
    kept: int = 0
    """Keys whose samples were not retired."""
    behind: int = 0
    """Of them: with a sample of the same policy."""
    joined: int = 0
    """Of them: with a sample."""
    within: int = 0
    """Of them: with a sample no older than the bound."""
    replayed: Replayed = field(default_factory=Replayed)


@dataclass(slots=True)
class RunCounts:
    state: StateCounts
    log: EventCounts
    rows: SampleCounts
    batches: Batches
    in_flight: int = 0
    groups: int = 0
    groups_complete: int = 0
    waiting_events: int = 0
    commands: int = 0
    open_commands: int = 0
    versions: int = 0
    versions_with_parent: int = 0
    versions_chained: int = 0
    held_leases: int = 0
    open_attempts: int = 0


def tally(conn: Connection, run_id: int, progress: Progress = nobody) -> RunCounts:
    """Read every row of a run once, in the caller's transaction."""
    reader = _Reader(conn, run_id, progress)
    state = reader.state()
    found = RunCounts(state, reader.log(state.seq), SampleCounts(), Batches())
    ordered = reader.commands(found)
    have = reader.episodes(found.rows, found.log.episodes)
    _groups(found, ordered, have)
    reader.samples(found.rows, found.log.samples)
    reader.trained(found)
    reader.rest(found)
    return found


def _groups(found: RunCounts, ordered: tuple[Array, Array], have: tuple[Array, Array]) -> None:
    """Compare members that were ordered with episodes that events told of, and with those that are there."""
    draws, members = ordered
    told = _summed(found.log.settled["draw"], found.log.settled["told"])
    found.in_flight = int(members.sum() - _looked_up(draws, *told).sum())
    single, back = np.unique(draws, return_inverse=True)
    most = np.zeros(len(single), np.int64)
    np.maximum.at(most, back, members)
    rows = _looked_up(single, *_summed(*have))
    settled = rows > 0
    whole = rows == most
    if found.state.by_episode:
        whole |= rows < most
    found.groups, found.groups_complete = int(settled.sum()), int((settled & whole).sum())


def _summed(keys: Array, values: Array) -> tuple[Array, Array]:
    """Sum values by key; the keys come sorted."""
    single, back = np.unique(keys, return_inverse=True)
    return single, np.bincount(back, values, len(single)).astype(np.int64)


def _looked_up(wanted: Array, keys: Array, values: Array) -> Array:
    """Return the value of each wanted key, 0 where there is none. `keys` are sorted."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


class _Columns:
    """Whole numbers of several columns, gathered from packed bytes."""

    def __init__(self, *types: str) -> None:
        self._types = types
        self._parts: list[list[npt.NDArray[Any]]] = [[] for _ in types]

    def add(self, *packed: bytes | None) -> None:
        """Add the rows of one statement."""
        for parts, kind, raw in zip(self._parts, self._types, packed, strict=True):
            parts.append(np.frombuffer(raw or b"", kind))

    def whole(self) -> tuple[Array, ...]:
        """Return every column as one array."""
        return tuple(
            np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64) for parts in self._parts
        )


@dataclass(frozen=True, slots=True)
class _Policy:
    name: str
    last: int
    """Newest number of a micro-batch."""
    bound: int
    older: bool
    """Whether rows are trained that are older than the bound."""
    max_age: int
    """Of replayed rows; 0: none are replayed."""


class _Reader:
    """The statements, each bounded by a range."""

    def __init__(self, conn: Connection, run_id: int, progress: Progress) -> None:
        self._conn, self._run, self._progress = conn, run_id, progress

    def _row(self, statement: str, **values: Any) -> tuple[Any, ...]:
        row = self._conn.execute(statement.encode(), {"run": self._run, **values}, binary=True).fetchone()
        assert row is not None
        return tuple(row)

    def _heard(self, part: str, done: int, total: int) -> None:
        low, high = _SHARES[part]
        self._progress(low + (high - low) * min(done, total) // max(1, total), part)

    def _ranges(self, statement: str, rows: int) -> Iterator[dict[str, int]]:
        """Yield (behind, up to] over draws; `statement` finds the draw that is `rows` rows behind another."""
        behind = -(2**31)
        while True:
            values = {"run": self._run, "behind": behind, "rows": rows}
            row = self._conn.execute(statement.encode(), values).fetchone()
            upto = 2**31 if row is None else int(row[0])
            yield {"behind": behind, "upto": upto}
            if row is None:
                return
            behind = upto

    def state(self) -> StateCounts:
        """Read what the run says of itself; a run without a state has nothing."""
        row = self._conn.execute(sql.STATE.encode(), {"run": self._run}).fetchone()
        return StateCounts() if row is None else StateCounts(*row)

    def log(self, newest: int) -> EventCounts:
        """Read the events, and those that wait."""
        (retired,) = self._row(sql.RETIRED)
        found, columns, gone = EventCounts(), _Columns(">i4", ">i4"), _Columns(">i4")
        for low in range(0, newest, EVENTS):
            row = self._row(sql.EVENTS, low=low, high=low + EVENTS, retired=retired)
            _add(found, row)
            found.imported += row[7]
            columns.add(*row[4:6])
            gone.add(row[6])
            self._heard("log", low + EVENTS, newest)
        beyond = self._row(sql.EVENTS, low=-(-newest // EVENTS) * EVENTS, high=2**62, retired=retired)
        _add(found, beyond)
        columns.add(*beyond[4:6])
        gone.add(beyond[6])
        waiting = self._row(sql.WAITING)
        _add(found, waiting)
        found.imported += beyond[7] + waiting[4]
        draw, told = columns.whole()
        found.settled = {"draw": draw, "told": told}
        (found.retired,) = gone.whole()
        return found

    def commands(self, found: RunCounts) -> tuple[Array, Array]:
        """Read the orders of groups: draws and their members."""
        columns = _Columns(">i4", ">i4")
        (newest,) = self._row("SELECT coalesce(max(no), 0) FROM store.command WHERE run_id = %(run)s")
        for low in range(0, newest + 1, COMMANDS):
            total, still_open = self._row(sql.COMMANDS, low=low, high=low + COMMANDS)
            found.commands += total
            found.open_commands += still_open
            columns.add(*self._row(sql.ORDERED, low=low, high=low + COMMANDS))
            self._heard("commands", low + COMMANDS, newest + 1)
        draws, members = columns.whole()
        return draws, members

    def episodes(self, rows: SampleCounts, expected: int) -> tuple[Array, Array]:
        """Count episode rows, by draw."""
        columns = _Columns(">i4", ">i4")
        for number, span in enumerate(self._ranges(sql.NEXT_EPISODE, EPISODES), start=1):
            columns.add(*self._row(sql.EPISODES, **span))
            self._heard("episodes", number * EPISODES, expected)
        draws, have = columns.whole()
        rows.episodes = int(have.sum())
        return draws, have

    def samples(self, rows: SampleCounts, expected: int) -> None:
        """Count sample rows, their tokens and their payloads by reference."""
        for span in self._ranges(sql.NEXT_SAMPLE, SAMPLES):
            some = self._row(sql.SAMPLES, **span)
            rows.samples += some[0]
            rows.tokens += some[1]
            rows.by_reference += some[2]
            rows.registered += some[3]
            rows.imported += some[4]
            self._heard("samples", rows.samples, expected)

    def policies(self) -> list["_Policy"]:
        """Name the policies with micro-batches."""
        return [_Policy(*row) for row in self._conn.execute(sql.POLICIES.encode(), {"run": self._run}).fetchall()]

    def trained(self, found: RunCounts) -> None:
        """Read the micro-batches, policy by policy."""
        policies = self.policies()
        total, before = sum(policy.last + 1 for policy in policies), 0
        for policy in policies:
            self._trained(policy, found, before, total)
            before += policy.last + 1

    def _trained(self, policy: "_Policy", found: RunCounts, before: int, total: int) -> None:
        """Read one policy's micro-batches and compare what they applied with the samples."""
        name, last = policy.name, policy.last
        batches, columns, again = found.batches, _Columns(">i4", ">i4", ">i8"), _Columns(">i4", ">i4", ">i8", ">i8")
        values = {"policy": name, "bound": policy.bound, "older": policy.older, "max_age": policy.max_age}
        for low in range(0, last + 1, BATCHES):
            some = self._row(sql.BATCHES, low=low, high=low + BATCHES, **values)
            batches.cut += some[0]
            batches.accumulated += some[1]
            batches.applied += some[2]
            batches.void += some[3]
            batches.trained += some[4]
            batches.committed += some[5]
            columns.add(*self._row(sql.APPLIED, low=low, high=low + BATCHES, **values))
            if policy.max_age:
                again.add(*self._row(sql.REPLAYED, low=low, high=low + BATCHES, **values))
            self._heard("trained", before + min(low + BATCHES, last + 1), total)
        draws, marks, hashes = columns.whole()
        kept = ~np.isin(draws, found.log.retired)
        batches.keys += len(draws)
        batches.distinct += self._distinct(name, hashes)
        batches.kept += int(kept.sum())
        batches.joined += int((kept & (marks & 1 > 0)).sum())
        batches.behind += int((kept & (marks & 2 > 0)).sum())
        batches.within += int((kept & (marks & 4 > 0)).sum())
        _count_replayed(batches.replayed, again.whole(), hashes, found.log)

    def _distinct(self, policy: str, hashes: Array) -> int:
        """Count distinct keys. Equal hashes are most likely equal keys; the keys themselves decide."""
        single = np.unique(hashes)
        if len(single) == len(hashes):
            return len(hashes)
        (exact,) = self._row(sql.DISTINCT, policy=policy)
        return int(exact)

    def rest(self, found: RunCounts) -> None:
        """Read what is few: versions, what waits, leases, attempts."""
        (
            found.versions, found.versions_with_parent, found.versions_chained,
            found.waiting_events, found.held_leases, found.open_attempts,
        ) = self._row(sql.REST)  # fmt: skip
        self._progress(1000, "")


def _count_replayed(found: Replayed, columns: tuple[Array, ...], trained: Array, log: EventCounts) -> None:
    """Compare what was replayed with what was trained first, or imported. Hashes of 64 bits stand for rows."""
    draws, marks, rows, in_steps = columns
    others = draws < 0
    kept = np.where(others, log.imported > 0, ~np.isin(draws, log.retired))
    found.rows += len(rows)
    found.once += len(np.unique(in_steps))
    found.known += int((np.isin(rows, trained) | others).sum())
    found.imported += int(others.sum())
    found.kept += int(kept.sum())
    found.young += int((kept & (marks & 2 > 0)).sum())


def _add(found: EventCounts, row: tuple[Any, ...]) -> None:
    found.events += row[0]
    found.steps += row[1]
    found.episodes += row[2]
    found.samples += row[3]
