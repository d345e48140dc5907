"""Rows that a run was trained on, token by token, in the order of their micro-batches: what an export of them reads.

Each row comes once, from its first step; what was replayed later is no row of its own. Reads only, one micro-batch at a
time, so a run of any size is never held in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from psycopg import Connection

from flexmarl.store.data import micro_batches
from flexmarl.store.data.micro_batches import MicroBatchRow


@dataclass(frozen=True, slots=True)
class RowEpisode:
    """What a row's episode came to."""

    task: dict[str, object]
    scores: dict[str, float]
    team_score: float
    solved: bool


@dataclass(frozen=True, slots=True)
class TrainedRow:
    policy: str
    step: int
    """Train step that it was first trained in, from 1."""
    version: int
    """Version that this step made."""
    row: MicroBatchRow
    episode: RowEpisode
    grammars: dict[str, str]
    """What its replies were held to: digest -> `ReplyGrammar` as JSON."""
    task_seed: int | None = None
    """Of its group; None where no command tells of it any more."""
    rewards: list[float] = field(default_factory=list)
    """Of each turn."""


def trained_rows(conn: Connection, run_id: int) -> Iterator[TrainedRow]:
    """Yield the rows of every committed step. Raises Refused where the tokens of one are not kept."""
    batches = conn.execute(
        "SELECT policy, no, cohort, version FROM store.micro_batch "
        "WHERE run_id = %s AND status = 'applied' AND NOT replayed ORDER BY policy, no",
        [run_id],
    ).fetchall()
    seeds = _task_seeds(conn, run_id)
    for policy, no, cohort, version in batches:
        batch = micro_batches.read(conn, run_id, policy, no)
        rows = batch.rows
        draws = sorted({row.draw for row in rows})
        episodes, rewards = _episodes(conn, run_id, draws), _rewards(conn, run_id, draws)
        for row in rows:
            own = {digest: batch.grammars[digest] for digest in row.grammars if digest}
            key = row.draw, row.member, row.attempt
            turns = rewards[(*key, row.role, row.turn)]
            yield TrainedRow(policy, cohort + 1, version, row, episodes[key], own, seeds.get(row.draw), turns)


def _episodes(conn: Connection, run_id: int, draws: list[int]) -> dict[tuple[int, int, int], RowEpisode]:
    rows = conn.execute(
        "SELECT draw, member, attempt, task, scores, team_score, solved FROM store.episode "
        "WHERE run_id = %s AND draw = ANY(%s)",
        [run_id, draws],
    ).fetchall()
    return {row[:3]: RowEpisode(*row[3:]) for row in rows}


def _rewards(conn: Connection, run_id: int, draws: list[int]) -> dict[tuple[int, int, int, str, int], list[float]]:
    """Return what each turn of the rows of some draws was rewarded with."""
    rows = conn.execute(
        "SELECT draw, member, attempt, role, turn, coalesce((SELECT array_agg((k.span ->> 3)::float8 ORDER BY k.ord)"
        " FROM jsonb_array_elements(spans) WITH ORDINALITY AS k(span, ord)), ARRAY[reward::float8])"
        " FROM store.sample WHERE run_id = %s AND draw = ANY(%s)",
        [run_id, draws],
    ).fetchall()
    return {row[:5]: row[5] for row in rows}


def _task_seeds(conn: Connection, run_id: int) -> dict[int, int]:
    """Return the task seed of each draw of training, as its commands have it."""
    rows = conn.execute(
        "SELECT DISTINCT (g ->> 'draw')::int, (g ->> 'task_seed')::bigint FROM store.command c,"
        " jsonb_array_elements(c.body -> 'groups') AS g"
        " WHERE c.run_id = %s AND c.kind = 'play_groups' AND c.body ->> 'origin' <> 'eval'",
        [run_id],
    ).fetchall()
    return dict(rows)
