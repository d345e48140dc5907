"""Settled episode groups: rows and the event that speaks of them, in one transaction.

Invariants: a group's episodes, samples and `GroupSettled` event appear together or not at all, written by whoever
holds the command's token in the run's present epoch. A member that is already settled is left alone, so that a second
taker, or the same one after a lost acknowledgement, adds nothing. Payloads that go to segment files are on the disk
before the transaction that names them begins.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import orjson
from psycopg import Connection
from psycopg.errors import CheckViolation, DiskFull

from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.store import storable
from flexmarl.store.control.commands import Taken, finish, guard
from flexmarl.store.control.inbox import put_events
from flexmarl.store.data import reply_grammars, said, sample_copy
from flexmarl.store.data.payload import Floats, Ints, allowed_length, pack
from flexmarl.store.data.segments import Placed, SegmentFolder
from flexmarl.store.data.spans import Span, encoded
from flexmarl.store.errors import Refused, SamplesAway, StoreFull
from flexmarl.store.node_operations import for_nodes, taken_command
from flexmarl.store.wire_lists import Listed


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """The winning attempt of one member. Times in seconds since the epoch."""

    draw: int
    member: int
    attempt: int
    origin: Origin
    status: EpisodeStatus
    reason: str
    scores: dict[str, float]
    team_score: float
    solved: bool
    turns: int
    tokens: int
    pins: dict[str, int]
    task: dict[str, object]
    transcript: list[object]
    started_at: float
    finished_at: float
    cohort: int = -1
    facts: dict[str, float] = field(default_factory=dict)
    """What the environment counted, by name."""
    judged: list[dict[str, object]] = field(default_factory=list)
    """Answers with all that was said of them: `role`, `turn`, `parts` and `why` by the names of the scores."""
    said: Listed[str] = ()
    """What was said, turn after turn as in the transcript."""
    breaks: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Cause -> (role, turn) of each chain that began anew because of it."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A chain of one role, token-exact."""

    draw: int
    member: int
    attempt: int
    role: str
    turn: int
    """The first one."""
    policy: str
    version: int
    segments: Listed[int]
    prompt: Ints
    """Ids that were read, of all turns."""
    response: Ints
    """Ids that were sampled, of all turns."""
    logprobs: Floats
    allowed: Ints
    spans: Listed[Span]
    """How both alternate, and what is told of each turn."""
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class SettledGroup:
    event: GroupSettled
    episodes: Listed[EpisodeRow]
    samples: Listed[SampleRow]
    grammars: Listed[str] = ()
    """What replies were held to, each once: `ReplyGrammar` as JSON, which spans name by its digest."""


_EPISODE = (
    "run_id", "draw", "member", "attempt", "origin", "status", "reason", "cohort", "scores", "team_score", "solved",
    "turns", "tokens", "pins", "task", "transcript", "facts", "judged", "said", "said_marks", "breaks", "started_at",
    "finished_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Stored:
    """A sample with its payload, or with the place where its payload lies."""

    row: SampleRow
    payload: bytes | None
    placed: Placed | None


@for_nodes(taken_command("taken"), given=["folder"])
def put_groups(
    conn: Connection,
    taken: Taken,
    groups: Listed[SettledGroup],
    folder: SegmentFolder | None = None,
    last: bool = False,
) -> int:
    """Write settled groups and their events; returns how many were new. With the `last` ones the command is done.

    Large payloads go to the folder's segment files, without a folder every payload stays in its row. Raises TokenLost,
    EpochStale, StoreFull, SamplesAway, or Refused for rows that the command does not order, with nothing written.
    """
    _within(taken, groups)
    stored = _store_payloads(taken, groups, folder)
    try:
        return _put(conn, taken, stored, folder, last)
    except DiskFull as error:
        raise StoreFull("the database", str(error).strip()) from error
    except CheckViolation as error:
        if error.diag.constraint_name is None:  # no table of the run takes the row
            raise SamplesAway(taken.run_id) from error
        raise


def _within(taken: Taken, groups: Sequence[SettledGroup]) -> None:
    """Raise Refused unless every row belongs to a group that the command orders: a token opens nothing else."""
    order = taken.command
    members = {group.draw: group.members for group in order.groups} if isinstance(order, PlayGroups) else {}
    for group in groups:
        draw = group.event.draw
        keys = [(row.draw, row.member) for row in group.episodes] + [(row.draw, row.member) for row in group.samples]
        if draw not in members or any(key[0] != draw or key[1] >= members[draw] for key in keys):
            text = f"command {taken.no} of run {taken.run_id} does not order these rows of draw {draw}"
            raise Refused("outside_command", text)


def _put(
    conn: Connection,
    taken: Taken,
    stored: Sequence[tuple[SettledGroup, list[_Stored]]],
    folder: SegmentFolder | None,
    last: bool,
) -> int:
    with conn.transaction():
        guard(conn, taken)
        known = settled_members(conn, taken.run_id, [group.event.draw for group, _ in stored])
        new = [(group, samples) for group, samples in stored if not _any_in(group, known)]
        if new:
            _insert_episodes(conn, taken.run_id, [row for group, _ in new for row in group.episodes])
            reply_grammars.keep(conn, taken.run_id, {body for group, _ in new for body in group.grammars})
            samples = [one for _, samples in new for one in samples]
            placed = [one.placed for one in samples if one.placed is not None]
            if folder is not None and placed:
                folder.register(conn, taken.run_id, taken.epoch, placed)
            _copy_samples(conn, taken.run_id, samples)
            put_events(conn, taken.run_id, [(_event_key(group.event), group.event) for group, _ in new])
        if last:
            finish(conn, taken)
    return len(new)


def _any_in(group: SettledGroup, known: dict[int, set[int]]) -> bool:
    members = known.get(group.event.draw, ())
    return any(row.member in members for row in group.episodes)


def _event_key(event: GroupSettled) -> str:
    """Name the fact: a group settles once, and where its episodes settle one by one, each of them once."""
    if not event.part:
        return f"group:{event.draw}"
    return f"group:{event.draw}:{','.join(str(episode.member) for episode in event.episodes)}"


def _store_payloads(
    taken: Taken, groups: Sequence[SettledGroup], folder: SegmentFolder | None
) -> list[tuple[SettledGroup, list[_Stored]]]:
    """Pack every payload, and bring the large ones to the disk with one flush."""
    rows = [row for group in groups for row in group.samples]
    packed = [pack(row.prompt, row.response, row.logprobs, row.allowed) for row in rows]
    limit = math.inf if folder is None else folder.by_value_bytes
    large = [index for index, payload in enumerate(packed) if len(payload) > limit]
    large.sort(key=lambda index: rows[index].policy)  # a micro-batch has one policy's rows: one read has them together
    placed: dict[int, Placed] = {}
    if folder is not None and large:
        found = folder.append(taken.run_id, taken.epoch, [packed[index] for index in large])
        placed = dict(zip(large, found, strict=True))
    stored = iter(
        _Stored(row, None if index in placed else payload, placed.get(index))
        for index, (row, payload) in enumerate(zip(rows, packed, strict=True))
    )
    return [(group, list(islice(stored, len(group.samples)))) for group in groups]


def settled_members(conn: Connection, run_id: int, draws: Sequence[int]) -> dict[int, set[int]]:
    """Return which members of the draws have their rows already; a draw without any is left out."""
    rows = conn.execute(
        "SELECT draw, array_agg(DISTINCT member) FROM store.episode WHERE run_id = %s AND draw = ANY(%s) GROUP BY draw",
        [run_id, list(draws)],
    ).fetchall()
    return {draw: set(members) for draw, members in rows}


def _insert_episodes(conn: Connection, run_id: int, rows: Sequence[EpisodeRow]) -> None:
    values = [_episode_values(row) for row in rows]
    conn.execute(
        f"""
        INSERT INTO store.episode ({", ".join(_EPISODE)})
        SELECT %s, e.draw, e.member, e.attempt, e.origin, e.status, e.reason, e.cohort, e.scores::jsonb, e.team_score,
          e.solved, e.turns, e.tokens, e.pins::jsonb, e.task::jsonb, e.transcript::jsonb, e.facts::jsonb,
          e.judged::jsonb, e.said, e.said_marks, e.breaks::jsonb, to_timestamp(e.started_at),
          to_timestamp(e.finished_at)
        FROM unnest(%b::int[], %b::int[], %b::int[], %b::text[], %b::text[], %b::text[], %b::int[], %b::text[],
          %b::float4[], %b::bool[], %b::int[], %b::int[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[],
          %b::text[], %b::bytea[], %b::text[], %b::float8[], %b::float8[])
          AS e(draw, member, attempt, origin, status, reason, cohort, scores, team_score, solved, turns, tokens, pins,
               task, transcript, facts, judged, said, said_marks, breaks, started_at, finished_at)
        """,
        [run_id, *(list(column) for column in zip(*values, strict=True))],
    )


def _episode_values(row: EpisodeRow) -> tuple[object, ...]:
    return (
        row.draw, row.member, row.attempt, row.origin.value, row.status.value, storable.text(row.reason), row.cohort,
        _json(row.scores), float(row.team_score), bool(row.solved), row.turns, row.tokens, _json(row.pins),
        _json(row.task), _json(row.transcript), _json(row.facts), _json(row.judged), *said.kept(row.said),
        _json(row.breaks),
        float(row.started_at), float(row.finished_at),
    )  # fmt: skip


def copy_by_value(conn: Connection, run_id: int, rows: Sequence[SampleRow]) -> None:
    """Write samples whose payloads stay in their rows, in the caller's transaction."""
    packed = (pack(row.prompt, row.response, row.logprobs, row.allowed) for row in rows)
    _copy_samples(conn, run_id, [_Stored(row, payload, None) for row, payload in zip(rows, packed, strict=True)])


def _copy_samples(conn: Connection, run_id: int, samples: Sequence[_Stored]) -> None:
    if not samples:
        return
    statement = f"COPY store.sample ({', '.join(sample_copy.COLUMNS)}) FROM STDIN (FORMAT BINARY)"
    with conn.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(b"".join((sample_copy.BEGIN, *(_copied(run_id, one) for one in samples), sample_copy.END)))


def _copied(run_id: int, one: _Stored) -> bytes:
    row, placed, last = one.row, one.placed, one.row.spans[-1]
    reward, latency_ms = sum(span.reward for span in row.spans), sum(span.latency_ms for span in row.spans)
    numbers = (
        run_id, row.draw, row.member, row.attempt, row.turn, row.version, len(row.prompt), len(row.response),
        allowed_length(row.allowed), reward, row.temperature, latency_ms,
    )  # fmt: skip
    place = None if placed is None else (placed.segment, placed.offset, placed.digest)
    texts = (row.role, row.policy, last.finish, last.engine)
    return sample_copy.row(numbers, texts, row.segments, encoded(row.spans), one.payload, place)


def _json(value: object) -> str:
    return storable.json(orjson.dumps(value).decode())
