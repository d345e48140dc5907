"""What was played, for people: episodes with their turns decoded, and the group they were compared in.

Every query names the run, so only its partition is read; turns and the micro-batches that hold them are read once for
all episodes asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from psycopg import Connection

from flexmarl.store.data.payload import Arrays
from flexmarl.store.data.said import parted as parted_said
from flexmarl.store.data.spans import Span, decoded, parted, turns_of
from flexmarl.store.data.stored_payloads import PAYLOAD, load
from flexmarl.store.errors import Refused
from flexmarl.store.reads.episodes import SUMMARY, EpisodeSummary, Key, summary

_ROW = 14
"""Columns of a row before its payload's."""


@dataclass(frozen=True, slots=True)
class TrainedTurn:
    """The place of a turn's row in a micro-batch, as the cut fixed it."""

    advantage: float
    weight: float
    no: int
    status: str
    """cut, accumulated, applied or void."""
    cohort: int
    """Cohort whose step the micro-batch belongs to."""
    version: int | None
    """Version that its step committed; None before."""


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
    unreadable: str
    """Why the arrays are empty, when the payload cannot be had; else empty itself."""
    cut: TrainedTurn | None
    chain: int
    """First turn of its training row."""


@dataclass(frozen=True, slots=True)
class EpisodeDetail:
    episode: EpisodeSummary
    transcript: list[object]
    turns: list[TurnRecord]
    """In the order they were played."""
    facts: dict[str, float]
    """What the environment counted, by name."""
    judged: list[dict[str, Any]]
    """Answers with all that was said of them: `role`, `turn`, `parts` and `why` by the names of the scores."""
    said: dict[tuple[str, int], str]
    """What each turn said, also where its tokens are gone; nothing of rows that were written without."""
    breaks: dict[str, list[tuple[str, int]]]
    """Cause -> (role, turn) of each chain that began anew because of it."""


def episode(conn: Connection, run_id: int, key: Key) -> EpisodeDetail | None:
    """Read one episode with its turns; None when it does not exist."""
    found = details(conn, run_id, [key])
    return found[0] if found else None


def details(conn: Connection, run_id: int, keys: Sequence[Key]) -> list[EpisodeDetail]:
    """Read episodes with their turns, in the order asked for; unknown ones are left out."""
    rows = conn.execute(
        f"SELECT {SUMMARY}, e.transcript::text, e.facts::text, e.judged::text, e.breaks::text, e.said"
        f" FROM store.episode e {_ASKED}".encode(),
        _asked(run_id, keys),
    ).fetchall()
    beside = {row[:3]: (*map(orjson.loads, row[-5:-1]), row[-1]) for row in rows}
    turns = _turns(conn, run_id, keys)
    found = {row[:3]: summary(row[:-5]) for row in rows}
    return [
        EpisodeDetail(
            found[key],
            transcript,
            _played(turns.get(key, []), transcript),
            facts,
            judged,
            _said(transcript, said),
            _broken(breaks),
        )
        for key in keys
        if key in found
        for transcript, facts, judged, breaks, said in (beside[key],)
    ]


def _said(transcript: Sequence[Any], text: str) -> dict[tuple[str, int], str]:
    turns = [(str(entry[0]), int(entry[1])) for entry in transcript if isinstance(entry, list) and len(entry) > 1]
    return dict(zip(turns, parted_said(text, len(turns)), strict=True)) if text else {}


def _broken(breaks: dict[str, list[list[Any]]]) -> dict[str, list[tuple[str, int]]]:
    return {cause: [(str(role), int(turn)) for role, turn in found] for cause, found in breaks.items()}


def group(conn: Connection, run_id: int, draw: int) -> list[EpisodeSummary]:
    """Read all episodes of a group, in the order of their members."""
    rows = conn.execute(
        f"SELECT {SUMMARY} FROM store.episode e WHERE run_id = %s AND draw = %s ORDER BY member, attempt".encode(),
        [run_id, draw],
    ).fetchall()
    return [summary(row) for row in rows]


def advantages(
    conn: Connection, run_id: int, keys: Sequence[Key]
) -> dict[Key, dict[tuple[str, int], list[TrainedTurn]]]:
    """Find where the rows of some episodes are cut: by episode and (role, first turn), what was made of each turn."""
    rows = conn.execute(
        f"""
        WITH asked AS MATERIALIZED (SELECT e.cohort, e.draw, e.member, e.attempt FROM store.episode e {_ASKED})
        SELECT a.draw, a.member, a.attempt, k.key ->> 3, (k.key ->> 4)::int, m.advantages[k.first:k.last],
          m.weights[k.ord], m.no, m.status, m.cohort, m.version
        FROM store.micro_batch m, LATERAL (
            SELECT key, ord, sum((key ->> 5)::int) OVER (ORDER BY ord) - (key ->> 5)::int + 1 AS first,
              sum((key ->> 5)::int) OVER (ORDER BY ord) AS last
            FROM jsonb_array_elements(m.keys) WITH ORDINALITY AS e(key, ord)) k, asked a
        WHERE m.run_id = %(run)s AND m.cohort = ANY (SELECT cohort FROM asked) AND a.draw = (k.key ->> 0)::int
          AND a.member = (k.key ->> 1)::int AND a.attempt = (k.key ->> 2)::int
        """.encode(),
        _asked(run_id, keys),
    ).fetchall()
    found: dict[Key, dict[tuple[str, int], list[TrainedTurn]]] = {}
    for draw, member, attempt, role, first, advantages, *cut in rows:
        of_turns = [TrainedTurn(advantage, *cut) for advantage in advantages]
        found.setdefault((draw, member, attempt), {})[(role, first)] = of_turns
    return found


_ASKED = """
  JOIN unnest(%(draws)s::int[], %(members)s::int[], %(attempts)s::int[]) AS w(draw, member, attempt)
    ON e.draw = w.draw AND e.member = w.member AND e.attempt = w.attempt
  WHERE e.run_id = %(run)s"""


def _asked(run_id: int, keys: Sequence[Key]) -> dict[str, object]:
    draws, members, attempts = zip(*keys, strict=True) if keys else ((), (), ())
    return {"run": run_id, "draws": list(draws), "members": list(members), "attempts": list(attempts)}


def _turns(conn: Connection, run_id: int, keys: Sequence[Key]) -> dict[Key, list[TurnRecord]]:
    with conn.cursor(binary=True) as cursor:  # binary: payloads come without hexadecimal in between
        rows = cursor.execute(
            f"""
            SELECT s.draw, s.member, s.attempt, s.role, s.turn, s.policy, s.version, s.segments, s.finish, s.reward,
              s.temperature, s.engine, s.latency_ms, s.spans, {PAYLOAD}
            FROM store.sample s {_ASKED.replace("e.", "s.")} ORDER BY s.role, s.turn
            """.encode(),
            _asked(run_id, keys),
        ).fetchall()
    cuts = advantages(conn, run_id, keys)
    found: dict[Key, list[TurnRecord]] = {}
    for row, loaded in zip(rows, _arrays(conn, [row[_ROW:] for row in rows]), strict=True):
        found.setdefault(row[:3], []).extend(_of_row(row[3:], *loaded, cuts.get(row[:3], {})))
    return found


def _of_row(
    row: Sequence[Any], arrays: Arrays, unreadable: str, cuts: dict[tuple[str, int], list[TrainedTurn]]
) -> Iterator[TurnRecord]:
    """Part a row into its turns."""
    role, first, policy, version, segments, finish, reward, temperature, engine, latency_ms, kept = row[: _ROW - 3]
    spans = decoded(kept, Span(arrays.n_prompt, arrays.n_response, finish, reward, engine, latency_ms))
    made = [segments] if kept is None else parted(segments, [span.sampled for span in spans])
    trained = cuts.get((role, first), [None] * len(spans))
    for span, own, by, cut in zip(spans, turns_of(arrays, spans), made, trained, strict=True):
        yield TurnRecord(
            role, first + span.offset, policy, min(by[::2], default=version), by, span.finish, span.reward, temperature,
            span.engine, span.latency_ms, own, unreadable, cut, first,
        )  # fmt: skip


def _arrays(conn: Connection, rows: Sequence[Sequence[object]]) -> list[tuple[Arrays, str]]:
    """Load payloads; one that cannot be had leaves its turn without tokens, and says why."""
    try:
        return [(arrays, "") for arrays in load(conn, rows)]
    except Refused as refused:
        if len(rows) == 1:
            return [(Arrays(b""), f"{refused.code}: {refused}")]
        return [one for row in rows for one in _arrays(conn, [row])]


def _played(turns: list[TurnRecord], transcript: list[object]) -> list[TurnRecord]:
    """Order turns as the transcript names them; what it does not name comes last."""
    place: dict[tuple[str, int], int] = {}
    for index, entry in enumerate(transcript):
        if isinstance(entry, list) and len(entry) >= 2:
            place.setdefault((str(entry[0]), int(entry[1])), index)
    return sorted(turns, key=lambda record: place.get((record.role, record.turn), len(place)))
