"""Lists of a run's episodes: pages in any order and direction, and what a filter matches, counted.

Invariants: a page follows an order that ends in the primary key, from a position on, so rows written meanwhile neither
shift nor repeat a page. Every query names the run, so only its partition is read. A page is cut from one index that
also holds what it filters by (see `schema.sql`); what no index holds, a role's own score, is looked for in a bounded
part of the order, as are words that were said, and the page says where it stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import orjson
from psycopg import Connection, sql
from psycopg.sql import SQL, Composable, Composed
from psycopg.sql import Literal as Value

from flexmarl.contracts.wire import EVALUATION_DRAWS, EpisodeStatus, Origin
from flexmarl.store.data import said

Key = tuple[int, int, int]
"""(draw, member, attempt) of an episode."""
Position = tuple[float | int, ...]
"""The order's own figure, when it has one, and the key of the row at a page's edge."""
Order = Literal["draw", "score", "tokens", "seconds"]

BOUND = 10_000
"""Newest matching episodes that facets count."""
ANY = "any"
WINDOW = 100_000
"""Episodes that one page examines for a role's own score or for what was said."""
_COLUMNS: dict[Order, tuple[str, str]] = {
    "draw": ("", ""), "score": ("team_score", "real"), "tokens": ("tokens", "int"), "seconds": ("seconds", "real"),
}  # fmt: skip


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
    seconds: float

    @property
    def key(self) -> Key:
        """The episode's primary key within its run."""
        return (self.draw, self.member, self.attempt)


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Absent fields do not filter."""

    origin: Origin = Origin.TRAIN
    cohort: int | None = None
    draw: int | None = None
    """One episode group."""
    status: EpisodeStatus | None = None
    solved: bool | None = None
    score: tuple[float | None, float | None] = (None, None)
    turns: tuple[int | None, int | None] = (None, None)
    tokens: tuple[int | None, int | None] = (None, None)
    seconds: tuple[float | None, float | None] = (None, None)
    role: str = ""
    role_score: tuple[float | None, float | None] = (None, None)
    """Of `role`, both ends included as everywhere."""
    pins: dict[str, int] = field(default_factory=dict)
    """Policy -> version it was played with."""
    text: str = ""
    """Words of the title, all of them; the last may be incomplete."""
    said: str = ""
    """Words that were said in the episode, all of them; the last may be incomplete."""
    speaker: str = ""
    """Role that said all the words of `said` in one turn."""
    broken: str = ""
    """Cause by which a chain broke; `any`: whatever it was."""
    keys: Sequence[Key] | None = None
    """Only these."""


@dataclass(frozen=True, slots=True)
class Ordering:
    by: Order = "draw"
    descending: bool = True


NEWEST = Ordering()


@dataclass(frozen=True, slots=True)
class EpisodePage:
    rows: list[EpisodeSummary]
    before: Position | None
    """Where the page towards the beginning of the order starts; None at the beginning."""
    behind: Position | None
    """Where the next page starts; None at the end."""


@dataclass(frozen=True, slots=True)
class EpisodeCount:
    """Matching episodes of one outcome and score."""

    score: float
    status: str
    solved: bool
    count: int


SUMMARY = """e.draw, e.member, e.attempt, e.origin, e.status, e.reason, e.cohort, e.scores::text, e.team_score,
  e.solved, e.turns, e.tokens, e.pins::text, e.task::text, extract(epoch FROM e.started_at)::float8,
  extract(epoch FROM e.finished_at)::float8, e.seconds"""


def page(
    conn: Connection,
    run_id: int,
    wanted: EpisodeFilter,
    ordering: Ordering = NEWEST,
    *,
    limit: int,
    position: Position | None = None,
    back: bool = False,
) -> EpisodePage:
    """Cut up to `limit` episodes behind a position of the order, or before it when `back`."""
    way = ordering if not back else Ordering(ordering.by, not ordering.descending)
    source = _ordered(run_id, wanted, way, position)
    keys = _narrowed(source, wanted, limit + 1)
    statement = SQL("""
        SELECT {summary} FROM ({keys}) k JOIN store.episode e ON e.run_id = {run} AND e.draw = k.draw
          AND e.member = k.member AND e.attempt = k.attempt ORDER BY {order}
        """).format(summary=SQL(SUMMARY), keys=keys, run=Value(run_id), order=_order(way, "e."))
    rows = [summary(row) for row in conn.execute(statement).fetchall()]
    onward = position_of(rows[limit - 1], ordering) if len(rows) > limit else None
    if onward is None and _is_windowed(wanted):
        onward = _last_examined(conn, source, way)
    rows = rows[:limit]
    if back:
        rows.reverse()
        return EpisodePage(rows, onward, position_of(rows[-1], ordering) if rows else position)
    return EpisodePage(rows, position_of(rows[0], ordering) if rows and position is not None else None, onward)


def tallies(conn: Connection, run_id: int, wanted: EpisodeFilter, bound: int = BOUND) -> list[EpisodeCount]:
    """Count the newest matching episodes, at most `bound`, by outcome and score."""
    keys = _narrowed(_ordered(run_id, wanted, NEWEST, None), wanted, bound)
    statement = SQL(
        "SELECT team_score, status, solved, count(*) FROM ({keys}) k GROUP BY team_score, status, solved ORDER BY 1"
    )
    return [EpisodeCount(*row) for row in conn.execute(statement.format(keys=keys)).fetchall()]


def looks_at_all(conn: Connection, run_id: int, wanted: EpisodeFilter) -> bool:
    """Say whether a search from the newest on examines every episode: not where a role's own score bounds it."""
    if not _is_windowed(wanted):
        return True
    return _last_examined(conn, _ordered(run_id, wanted, NEWEST, None), NEWEST) is None


def position_of(row: EpisodeSummary, ordering: Ordering) -> Position:
    """Return where a row stands in an order."""
    own = {"draw": (), "score": (row.team_score,), "tokens": (row.tokens,), "seconds": (row.seconds,)}
    return (*own[ordering.by], *row.key)


def summary(row: Sequence[object]) -> EpisodeSummary:
    """Read a row of `SUMMARY`."""
    values = list(row)
    for index in (7, 12, 13):
        values[index] = orjson.loads(str(values[index]))
    return EpisodeSummary(*values)  # type: ignore[arg-type]


def _is_windowed(wanted: EpisodeFilter) -> bool:
    return _by_role(wanted) or bool(said.words(wanted.said))


def _by_role(wanted: EpisodeFilter) -> bool:
    return bool(wanted.role) and wanted.role_score != (None, None)


def _ordered(run_id: int, wanted: EpisodeFilter, way: Ordering, position: Position | None) -> Composed:
    """Everything that the indexes can decide, in order; with what they cannot also that, and bounded."""
    conditions = [SQL("run_id = {}").format(Value(run_id)), *_draws(wanted.origin, way, position), *_conditions(wanted)]
    if position is not None:
        conditions.append(_behind(way, position))
    windowed = _is_windowed(wanted)
    return SQL("SELECT {columns} FROM store.episode WHERE {where} ORDER BY {order}{bound}").format(
        columns=SQL("draw, member, attempt, team_score, status, solved, tokens, seconds")
        + SQL(", scores, said, said_marks, transcript" if windowed else ""),
        where=SQL(" AND ").join(conditions),
        order=_order(way),
        bound=SQL(" LIMIT {}").format(Value(WINDOW)) if windowed else SQL(""),
    )


def _narrowed(source: Composed, wanted: EpisodeFilter, limit: int) -> Composed:
    if not _is_windowed(wanted):
        return source + SQL(" LIMIT {}").format(Value(limit))
    conditions: list[Composable] = []
    if _by_role(wanted):
        conditions += _range(SQL("(scores ->> {})::float8").format(Value(wanted.role)), wanted.role_score)
    if found := said.words(wanted.said):
        conditions.append(_said(found, wanted.speaker))
    return SQL("SELECT * FROM ({source}) w WHERE {where} LIMIT {limit}").format(
        source=source, where=SQL(" AND ").join(conditions), limit=Value(limit)
    )


def _said(words: Sequence[str], speaker: str) -> Composable:
    """Look at the filter, and only where that has all the words at the text: PostgreSQL would begin with either."""
    last = len(words) - 1
    places = sorted({at for no, word in enumerate(words) for at in said.places(word, whole=no < last)})
    bits = [SQL("get_bit(said_marks, {} & (8 * length(said_marks) - 1)) = 1").format(Value(at)) for at in places]
    patterns = [f"(^|[^[:alnum:]]){word}{'' if no == last else '(?![[:alnum:]])'}" for no, word in enumerate(words)]
    whole = _matching(SQL("said"), patterns)
    if speaker:
        whole += SQL(
            " AND EXISTS (SELECT 1 FROM unnest(string_to_array(said, {parts})) WITH ORDINALITY AS s(part, at) "
            "WHERE transcript -> (s.at::int - 1) ->> 0 = {role} AND {each})"
        ).format(parts=Value(said.PARTS), role=Value(speaker), each=_matching(SQL("s.part"), patterns))
    if not bits:  # one letter that a word begins with has no trigram
        return whole
    return SQL("CASE WHEN {bits} THEN {whole} ELSE false END").format(bits=SQL(" AND ").join(bits), whole=whole)


def _matching(text: SQL, patterns: Sequence[str]) -> Composed:
    return SQL(" AND ").join(SQL("{} ~* {}").format(text, Value(pattern)) for pattern in patterns)


def _last_examined(conn: Connection, source: Composed, way: Ordering) -> Position | None:
    """Where a bounded search stopped; None when it came to the end."""
    column, _ = _COLUMNS[way.by]
    own = SQL(f"{column}, ") if column else SQL("")
    statement = SQL("SELECT {own}draw, member, attempt FROM ({source}) w OFFSET {last}")
    row = conn.execute(statement.format(own=own, source=source, last=Value(WINDOW - 1))).fetchone()
    return None if row is None else tuple(row)


def _draws(origin: Origin, way: Ordering, position: Position | None) -> list[Composable]:
    """Bound the draws by their origin. In the order of draws a position is the better bound on its side.

    Both bounds at once would make the index scan begin at the looser one.
    """
    first, last = (0, EVALUATION_DRAWS - 1) if origin is Origin.TRAIN else (EVALUATION_DRAWS, 2**31 - 1)
    placed = way.by == "draw" and position is not None
    bounds: list[Composable] = []
    if not placed or way.descending:
        bounds.append(SQL("draw >= {}").format(Value(first)))
    if not placed or not way.descending:
        bounds.append(SQL("draw <= {}").format(Value(last)))
    return bounds


def _conditions(wanted: EpisodeFilter) -> list[Composable]:
    found: list[Composable] = []
    for name, value in (("cohort", wanted.cohort), ("draw", wanted.draw), ("solved", wanted.solved)):
        if value is not None:
            found.append(SQL("{} = {}").format(sql.Identifier(name), Value(value)))
    found += _status(wanted.status)
    for name, whole in (("turns", wanted.turns), ("tokens", wanted.tokens)):
        found += _range(sql.Identifier(name), whole, "int")
    for name, bounds in (("team_score", wanted.score), ("seconds", wanted.seconds)):
        found += _range(sql.Identifier(name), bounds, "real")
    if wanted.pins:
        found.append(SQL("pins @> {}::jsonb").format(Value(orjson.dumps(wanted.pins).decode())))
    if words := _search(wanted.text):
        found.append(SQL("to_tsvector('simple', task ->> 'title') @@ to_tsquery('simple', {})").format(Value(words)))
    found += _breaks(wanted.broken)
    if wanted.keys is not None:
        found.append(_among(wanted.keys))
    return found


def _status(status: EpisodeStatus | None) -> list[Composable]:
    if status is None:
        return []
    found: list[Composable] = [SQL("status = {}").format(Value(status.value))]
    return found if status is EpisodeStatus.FINISHED else [*found, SQL("status <> 'finished'")]


def _breaks(cause: str) -> list[Composable]:
    if not cause:
        return []
    broken: list[Composable] = [SQL("breaks <> '{}'")]
    return broken if cause == ANY else [*broken, SQL("breaks ? {}").format(Value(cause))]


def _search(text: str) -> str:
    """Write a query of words that all must occur; punctuation of the text only parts words."""
    words = "".join(letter if letter.isalnum() else " " for letter in text).split()
    return " & ".join([*words[:-1], f"{words[-1]}:*"]) if words else ""


def _among(keys: Sequence[Key]) -> Composable:
    if not keys:
        return SQL("false")
    listed = SQL(", ").join(SQL("({}, {}, {})").format(*map(Value, key)) for key in keys)
    return SQL("(draw, member, attempt) IN (VALUES {})").format(listed)


def _range(
    column: Composable, bounds: tuple[float | int | None, float | int | None], kind: str = ""
) -> list[Composable]:
    return [
        SQL("{} {} {}").format(column, SQL(sign), _figure(bound, kind))
        for sign, bound in ((">=", bounds[0]), ("<=", bounds[1]))
        if bound is not None
    ]


def _figure(value: float | int, kind: str) -> Composable:
    """Write a figure of a column's type: what the type cannot hold becomes the nearest that it can."""
    if kind == "real":
        with np.errstate(over="ignore"):
            return SQL("{}::real").format(Value(float(np.float32(value))))
    return SQL("{}").format(Value(int(max(-(2**31), min(2**31 - 1, value))) if kind == "int" else value))


def _behind(way: Ordering, position: Position) -> Composable:
    column, kind = _COLUMNS[way.by]
    names = [column] if column else []
    values = [_figure(position[0], kind)] if column else []
    values += [SQL("{}").format(Value(value)) for value in position[len(names) :]]
    sign = SQL("<" if way.descending else ">")
    columns = SQL(", ").join(map(sql.Identifier, [*names, "draw", "member", "attempt"]))
    return SQL("({}) {} ({})").format(columns, sign, SQL(", ").join(values))


def _order(way: Ordering, prefix: str = "") -> Composed:
    column, _ = _COLUMNS[way.by]
    direction = "DESC" if way.descending else "ASC"
    names = [name for name in (column, "draw", "member", "attempt") if name]
    return SQL(", ").join(SQL(f"{prefix}{name} {direction}") for name in names)
