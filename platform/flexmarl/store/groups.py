"""Settled episode groups: rows and the event that speaks of them, in one transaction.

Invariants: a group's episodes, samples and `GroupSettled` event appear together or not at all, written by whoever
holds the command's token in the run's present epoch. A draw that is already settled is left alone, so that a second
taker, or the same one after a lost acknowledgement, adds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from psycopg import Connection

from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.store.commands import Taken, guard
from flexmarl.store.inbox import put_events
from flexmarl.store.payload import Floats, Ints, pack


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


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One turn of one role, token-exact."""

    draw: int
    member: int
    attempt: int
    role: str
    turn: int
    policy: str
    version: int
    segments: Sequence[int]
    prompt: Ints
    response: Ints
    logprobs: Floats
    allowed: Ints
    finish: str
    reward: float = 0.0
    temperature: float = 1.0
    engine: str = ""
    latency_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SettledGroup:
    event: GroupSettled
    episodes: Sequence[EpisodeRow]
    samples: Sequence[SampleRow]


_EPISODE = (
    "run_id", "draw", "member", "attempt", "origin", "status", "reason", "cohort", "scores", "team_score", "solved",
    "turns", "tokens", "pins", "task", "transcript", "started_at", "finished_at",
)  # fmt: skip
_SAMPLE = {
    "run_id": "int8", "draw": "int4", "member": "int4", "attempt": "int2", "role": "text", "turn": "int2",
    "policy": "text", "version": "int4", "segments": "int4[]", "n_prompt": "int4", "n_response": "int4",
    "n_allowed": "int4", "finish": "text", "reward": "float4", "temperature": "float4", "engine": "text",
    "latency_ms": "float4", "payload": "bytea",
}  # fmt: skip


def put_groups(conn: Connection, taken: Taken, groups: Sequence[SettledGroup]) -> int:
    """Write settled groups and their events; returns how many were new. Raises TokenLost or EpochStale."""
    with conn.transaction():
        guard(conn, taken)
        known = settled_draws(conn, taken.run_id, [group.event.draw for group in groups])
        fresh = [group for group in groups if group.event.draw not in known]
        if fresh:
            _insert_episodes(conn, taken.run_id, [row for group in fresh for row in group.episodes])
            _copy_samples(conn, taken.run_id, [row for group in fresh for row in group.samples])
            put_events(conn, taken.run_id, [(f"group:{group.event.draw}", group.event) for group in fresh])
    return len(fresh)


def settled_draws(conn: Connection, run_id: int, draws: Sequence[int]) -> set[int]:
    """Return which of the draws have their rows already."""
    rows = conn.execute(
        "SELECT DISTINCT draw FROM store.episode WHERE run_id = %s AND draw = ANY(%s)", [run_id, list(draws)]
    ).fetchall()
    return {row[0] for row in rows}


def _insert_episodes(conn: Connection, run_id: int, rows: Sequence[EpisodeRow]) -> None:
    values = [_episode_values(row) for row in rows]
    conn.execute(
        f"""
        INSERT INTO store.episode ({", ".join(_EPISODE)})
        SELECT %s, e.draw, e.member, e.attempt, e.origin, e.status, e.reason, e.cohort, e.scores::jsonb, e.team_score,
          e.solved, e.turns, e.tokens, e.pins::jsonb, e.task::jsonb, e.transcript::jsonb,
          to_timestamp(e.started_at), to_timestamp(e.finished_at)
        FROM unnest(%s::int[], %s::int[], %s::int[], %s::text[], %s::text[], %s::text[], %s::int[], %s::text[],
          %s::float4[], %s::bool[], %s::int[], %s::int[], %s::text[], %s::text[], %s::text[], %s::float8[],
          %s::float8[])
          AS e(draw, member, attempt, origin, status, reason, cohort, scores, team_score, solved, turns, tokens, pins,
               task, transcript, started_at, finished_at)
        """,
        [run_id, *(list(column) for column in zip(*values, strict=True))],
    )


def _episode_values(row: EpisodeRow) -> tuple[object, ...]:
    return (
        row.draw, row.member, row.attempt, row.origin.value, row.status.value, row.reason, row.cohort,
        _json(row.scores), row.team_score, row.solved, row.turns, row.tokens, _json(row.pins), _json(row.task),
        _json(row.transcript), row.started_at, row.finished_at,
    )  # fmt: skip


def _copy_samples(conn: Connection, run_id: int, rows: Sequence[SampleRow]) -> None:
    if not rows:
        return
    statement = f"COPY store.sample ({', '.join(_SAMPLE)}) FROM STDIN (FORMAT BINARY)"
    with conn.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.set_types(list(_SAMPLE.values()))
        for row in rows:
            copy.write_row(
                (
                    run_id, row.draw, row.member, row.attempt, row.role, row.turn, row.policy, row.version,
                    list(row.segments), len(row.prompt), len(row.response), len(row.allowed), row.finish, row.reward,
                    row.temperature, row.engine, row.latency_ms,
                    pack(row.prompt, row.response, row.logprobs, row.allowed),
                )
            )  # fmt: skip


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
