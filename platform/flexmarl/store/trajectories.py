"""What was played, for people: episodes by filter and cursor, one episode with its turns decoded.

Invariant: pages of a listing follow the primary key downwards from a cursor, so rows written meanwhile neither shift
nor repeat a page. Every query names the run, so only its partition is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from psycopg import Connection

from flexmarl.store.payload import Arrays, unpack

Cursor = tuple[int, int, int]
"""(draw, member, attempt) of the last row of a page."""


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    draw: int
    member: int
    attempt: int
    origin: str
    status: str
    reason: str
    cohort: int
    scores: dict[str, float]
    team_score: float
    solved: bool
    turns: int
    tokens: int
    pins: dict[str, int]
    task: dict[str, object]
    started_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Absent fields do not filter. `step` is the cohort the episode was played for."""

    step: int | None = None
    origin: str | None = None
    status: str | None = None
    solved: bool | None = None
    score_min: float | None = None
    score_max: float | None = None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    role: str
    turn: int
    policy: str
    version: int
    segments: list[int]
    finish: str
    reward: float
    temperature: float
    engine: str
    latency_ms: float
    arrays: Arrays
    advantage: float | None
    """As fixed when its micro-batch was cut; None when the turn is in none."""
    weight: float | None
    micro_batch: int | None
    micro_batch_status: str | None


@dataclass(frozen=True, slots=True)
class Member:
    member: int
    attempt: int
    status: str
    team_score: float
    solved: bool


@dataclass(frozen=True, slots=True)
class EpisodeDetail:
    episode: EpisodeSummary
    transcript: list[object]
    turns: list[TurnRecord]
    group: list[Member]
    """All members of its episode group, itself included."""


_SUMMARY = """draw, member, attempt, origin, status, reason, cohort, scores::text, team_score, solved, turns, tokens,
  pins::text, task::text, extract(epoch FROM started_at)::float8, extract(epoch FROM finished_at)::float8"""


def episodes(
    conn: Connection, run_id: int, wanted: EpisodeFilter, limit: int, cursor: Cursor | None = None
) -> list[EpisodeSummary]:
    """List up to `limit` episodes behind a cursor, newest draw first."""
    rows = conn.execute(
        f"""
        SELECT {_SUMMARY} FROM store.episode
        WHERE run_id = %(run)s
          AND (%(draw)s::int IS NULL OR (draw, member, attempt) < (%(draw)s, %(member)s, %(attempt)s))
          AND (%(step)s::int IS NULL OR cohort = %(step)s)
          AND (%(origin)s::text IS NULL OR origin = %(origin)s)
          AND (%(status)s::text IS NULL OR status = %(status)s)
          AND (%(solved)s::bool IS NULL OR solved = %(solved)s)
          AND (%(score_min)s::float8 IS NULL OR team_score >= %(score_min)s)
          AND (%(score_max)s::float8 IS NULL OR team_score <= %(score_max)s)
        ORDER BY draw DESC, member DESC, attempt DESC LIMIT %(limit)s
        """.encode(),
        {
            "run": run_id, "limit": limit, "draw": cursor[0] if cursor else None,
            "member": cursor[1] if cursor else None, "attempt": cursor[2] if cursor else None,
            "step": wanted.step, "origin": wanted.origin, "status": wanted.status, "solved": wanted.solved,
            "score_min": wanted.score_min, "score_max": wanted.score_max,
        },
    ).fetchall()  # fmt: skip
    return [_summary(row) for row in rows]


def episode(conn: Connection, run_id: int, draw: int, member: int, attempt: int) -> EpisodeDetail | None:
    """Read one episode with its turns in the order they were played; None when it does not exist."""
    row = conn.execute(
        f"""
        SELECT {_SUMMARY}, transcript::text FROM store.episode
        WHERE run_id = %s AND draw = %s AND member = %s AND attempt = %s
        """.encode(),
        [run_id, draw, member, attempt],
    ).fetchone()
    if row is None:
        return None
    transcript = orjson.loads(row[-1])
    turns = _turns(conn, run_id, (draw, member, attempt))
    return EpisodeDetail(_summary(row[:-1]), transcript, _played(turns, transcript), _group(conn, run_id, draw))


def _summary(row: Sequence[object]) -> EpisodeSummary:
    values = list(row)
    for index in (7, 12, 13):
        values[index] = orjson.loads(str(values[index]))
    return EpisodeSummary(*values)  # type: ignore[arg-type]


def _turns(conn: Connection, run_id: int, key: Cursor) -> list[TurnRecord]:
    with conn.cursor(binary=True) as cursor:
        rows = cursor.execute(
            """
            SELECT role, turn, policy, version, segments, finish, reward, temperature, engine, latency_ms,
              payload, n_prompt, n_response, n_allowed
            FROM store.sample WHERE run_id = %s AND draw = %s AND member = %s AND attempt = %s ORDER BY role, turn
            """,
            [run_id, *key],
        ).fetchall()
    cuts = _cuts(conn, run_id, key)
    records = []
    for role, turn, *row in rows:
        advantage, weight, no, status = cuts.get((role, turn), (None, None, None, None))
        policy, version, segments, finish, reward, temperature, engine, latency_ms, *payload = row
        records.append(
            TurnRecord(
                role, turn, policy, version, segments, finish, reward, temperature, engine, latency_ms,
                unpack(*payload), advantage, weight, no, status,
            )
        )  # fmt: skip
    return records


def _cuts(conn: Connection, run_id: int, key: Cursor) -> dict[tuple[str, int], tuple[float, float, int, str]]:
    """Find the micro-batches that hold turns of one episode."""
    rows = conn.execute(
        """
        SELECT k.key ->> 3, (k.key ->> 4)::int, m.advantages[k.ord], m.weights[k.ord], m.no, m.status
        FROM store.micro_batch m, jsonb_array_elements(m.keys) WITH ORDINALITY AS k(key, ord)
        WHERE m.run_id = %(run)s
          AND m.cohort = (SELECT cohort FROM store.episode WHERE run_id = %(run)s AND draw = %(draw)s
                          AND member = %(member)s AND attempt = %(attempt)s)
          AND (k.key ->> 0)::int = %(draw)s AND (k.key ->> 1)::int = %(member)s AND (k.key ->> 2)::int = %(attempt)s
        """,
        {"run": run_id, "draw": key[0], "member": key[1], "attempt": key[2]},
    ).fetchall()
    return {(role, turn): (advantage, weight, no, status) for role, turn, advantage, weight, no, status in rows}


def _group(conn: Connection, run_id: int, draw: int) -> list[Member]:
    rows = conn.execute(
        "SELECT member, attempt, status, team_score, solved FROM store.episode "
        "WHERE run_id = %s AND draw = %s ORDER BY member, attempt",
        [run_id, draw],
    ).fetchall()
    return [Member(*row) for row in rows]


def _played(turns: list[TurnRecord], transcript: list[object]) -> list[TurnRecord]:
    """Order turns as the transcript names them; what it does not name comes last."""
    place: dict[tuple[str, int], int] = {}
    for index, entry in enumerate(transcript):
        if isinstance(entry, list) and len(entry) >= 2:
            place.setdefault((str(entry[0]), int(entry[1])), index)
    return sorted(turns, key=lambda record: place.get((record.role, record.turn), len(place)))
