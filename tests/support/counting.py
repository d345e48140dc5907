"""Loss and doubling, counted on the rows by statements that share nothing with the product's own report.

What was ordered is read from the commands, what was played from the log, what was written from the episodes and what
was trained from the micro-batches; every figure is a count of distinct keys in one of these. `faults` says in words
what does not add up. A run may leave groups unplayed and samples untrained where its specification cancels, drops or
freezes some: `complete` is for those that must play and train every one.
"""

from collections import Counter
from dataclasses import dataclass

from psycopg import Connection

Key = tuple[int, int, int, str, int]
"""Draw, member, attempt, role and first turn of a sample, which may be a chain of turns."""

_ORDERED = """
SELECT (g ->> 'draw')::int, max((g ->> 'members')::int), bool_and(c.body ->> 'origin' = 'train'),
  sum((g ->> 'members')::int) FROM store.command c
CROSS JOIN jsonb_array_elements(c.body -> 'groups') AS g
WHERE c.run_id = %s AND c.kind = 'play_groups' GROUP BY 1
"""
_EPISODES = "SELECT draw, member, status FROM store.episode WHERE run_id = %s"
_SETTLED = """
SELECT (e.body ->> 'draw')::int, (o ->> 'member')::int FROM store.event e
CROSS JOIN jsonb_array_elements(e.body -> 'episodes') AS o
WHERE e.run_id = %s AND e.kind = 'group_settled'
"""
_SAID = """
SELECT (e.body ->> 'draw')::int, (o ->> 'member')::int, (o ->> 'attempt')::int, s ->> 'role', (s ->> 'turn')::int
FROM store.event e CROSS JOIN jsonb_array_elements(e.body -> 'episodes') AS o
CROSS JOIN jsonb_array_elements(o -> 'samples') AS s
WHERE e.run_id = %s AND e.kind = 'group_settled' AND e.body ->> 'origin' = 'train' AND o ->> 'status' = 'finished'
  AND coalesce((s ->> 'follows')::int, 0) = 0
"""
_APPLIED = """
SELECT (k ->> 0)::int, (k ->> 1)::int, (k ->> 2)::int, k ->> 3, (k ->> 4)::int
FROM store.micro_batch m CROSS JOIN jsonb_array_elements(m.keys) AS k
WHERE m.run_id = %s AND m.status = 'applied' AND NOT m.replayed
"""
_NUMBERS = "SELECT count(*), count(DISTINCT seq), coalesce(max(seq), 0) FROM store.event WHERE run_id = %s"
_STEPS = """
SELECT body ->> 'policy', (body ->> 'version')::int FROM store.event WHERE run_id = %s AND kind = 'step_committed'
"""


@dataclass(frozen=True, slots=True)
class Tally:
    """What the rows of a run add up to."""

    proposed: int
    """Episodes that some command ordered."""
    in_training: int
    """Of these, without evaluations."""
    in_training_again: int
    """Training episodes that were ordered once more, since the run had given up their group to rest."""
    finished: int
    failed: int
    cancelled: int
    missing: int
    """Ordered episodes without a row."""
    unordered: int
    """Rows of episodes that nobody ordered."""
    settled_twice: int
    """Episodes that two facts of the log told of, or that have two rows."""
    said: int
    """Samples of finished training episodes."""
    applied: int
    doubled: int
    """Samples that were applied more than once."""
    foreign: int
    """Samples that were applied and that no finished training episode said."""
    untrained: int
    """Samples of finished training episodes that were not applied."""
    log_gaps: int
    steps_doubled: int


def tally(conn: Connection, run_no: int) -> Tally:
    """Count the rows of a run."""
    orders = conn.execute(_ORDERED, [run_no]).fetchall()  # a group that was ordered again is the same group
    ordered = {(draw, member) for draw, members, _, _ in orders for member in range(members)}
    rows = conn.execute(_EPISODES, [run_no]).fetchall()
    written = Counter((draw, member) for draw, member, _ in rows)
    ends = Counter(status for _, _, status in rows)
    told = Counter(conn.execute(_SETTLED, [run_no]).fetchall())
    said, applied = (Counter[Key](conn.execute(text, [run_no]).fetchall()) for text in (_SAID, _APPLIED))
    numbers = conn.execute(_NUMBERS, [run_no]).fetchone()
    steps = Counter(conn.execute(_STEPS, [run_no]).fetchall())
    assert numbers is not None
    return Tally(
        proposed=len(ordered),
        in_training=sum(members for _, members, training, _ in orders if training),
        in_training_again=sum(every - members for _, members, training, every in orders if training),
        finished=ends["finished"],
        failed=ends["failed"],
        cancelled=ends["cancelled"],
        missing=len(ordered - written.keys()),
        unordered=len(written.keys() - ordered),
        settled_twice=_again(told) + _again(written),
        said=said.total(),
        applied=applied.total(),
        doubled=_again(applied),
        foreign=len(applied.keys() - said.keys()),
        untrained=len(said.keys() - applied.keys()),
        log_gaps=numbers[2] - numbers[1] + numbers[0] - numbers[1],
        steps_doubled=_again(steps),
    )


def _again(counted: "Counter[tuple[object, ...]]") -> int:
    """Return how often something is there beyond its first time."""
    return counted.total() - len(counted)


def faults(found: Tally, *, complete: bool = True) -> list[str]:
    """Say what does not add up; `complete`: what was ordered was all played, and all that was said was trained."""
    never = ["unordered", "settled_twice", "doubled", "foreign", "log_gaps", "steps_doubled"]
    lost = ["missing", "untrained"] if complete else []
    wrong = [f"{name.replace('_', ' ')}: {count}" for name in (*never, *lost) if (count := getattr(found, name))]
    ended = found.finished + found.failed + found.cancelled
    if complete and found.proposed != ended:
        wrong.append(f"{found.proposed} episodes were proposed and {ended} ended")
    return wrong


def assert_accounted(conn: Connection, run_no: int, *, complete: bool = True) -> Tally:
    """Fail with every fault of an ended run's rows; returns what they add up to."""
    found = tally(conn, run_no)
    wrong = faults(found, complete=complete)
    assert not wrong, f"run {run_no}: {'; '.join(wrong)} ({found})"
    assert found.finished, f"run {run_no} played nothing, so nothing is proved: {found}"
    return found
