"""What a run that ended is held to, whatever its scheduler: read off its rows, each rule for itself.

A rule compares two sources: rows that were trained with what the specification asks of a step, what was told of surplus
with the episodes that are there, and the store's own promises. `broken` names what does not hold, in words.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection

from flexmarl.contracts.events import Event, PolicyUnloaded, WeightsServed
from flexmarl.store.control.runs import events_after
from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted, faults, tally
from tests.support.system import System

_TRAINED = """
SELECT m.cohort, count(DISTINCT (k.key ->> 0)), count(DISTINCT ((k.key ->> 0), (k.key ->> 1)))
FROM store.micro_batch m, jsonb_array_elements(m.keys) AS k(key)
WHERE m.run_id = %s AND m.status = 'applied' GROUP BY 1 ORDER BY 1
"""
_LAGS = """
SELECT a.policy, max(a.version - 1 - s.version) FROM (
  SELECT m.policy, m.version, (k.key ->> 0)::int AS draw, (k.key ->> 1)::int AS member, (k.key ->> 2)::int AS attempt,
    k.key ->> 3 AS role, (k.key ->> 4)::int AS turn
  FROM store.micro_batch m, jsonb_array_elements(m.keys) AS k(key) WHERE m.run_id = %s AND m.status = 'applied') a
JOIN store.sample s ON s.run_id = %s AND s.draw = a.draw AND s.member = a.member AND s.attempt = a.attempt
  AND s.role = a.role AND s.turn = a.turn
GROUP BY 1 ORDER BY 1
"""
_SURPLUS = """
SELECT name, sum(value)::float8 FROM store.metric WHERE run_id = %s AND agent = ''
  AND name IN ('groups/handed_on', 'groups/cancelled', 'groups/deferred') GROUP BY 1
"""
_TURNED = "SELECT count(*) FROM store.ruling WHERE run_id = %s AND kind = 'devices_turned'"
_COUNTED = ("finished", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Kept:
    """What the rows of a run say."""

    episodes: dict[int, int]
    """Cohort -> episodes that were trained."""
    groups: dict[int, int]
    lags: dict[str, int]
    """Policy -> largest own lag of a trained row."""
    surplus: dict[str, float]
    turns: int
    """How often shared devices changed hands."""
    held: int
    """Most versions of one policy that an engine held without having been told to forget one."""
    wrong: tuple[str, ...]
    """Promises of the store that do not hold: by its own report, and by counts that share nothing with it."""


def read(conn: Connection, run_no: int) -> Kept:
    """Read what a run left behind."""
    trained = conn.execute(_TRAINED, [run_no]).fetchall()
    turned = conn.execute(_TURNED, [run_no]).fetchone()
    return Kept(
        episodes={int(cohort): int(episodes) for cohort, _, episodes in trained},
        groups={int(cohort): int(groups) for cohort, groups, _ in trained},
        lags={str(policy): int(lag) for policy, lag in conn.execute(_LAGS, [run_no, run_no]).fetchall()},
        surplus={str(name): float(value) for name, value in conn.execute(_SURPLUS, [run_no]).fetchall()},
        turns=int(turned[0]) if turned is not None else 0,
        held=_held([told.event for told in events_after(conn, run_no, 0)]),
        wrong=(
            *(f"{c.name}: {c.expected} against {c.found}" for c in consistency_report(conn, run_no) if not c.ok),
            *faults(tally(conn, run_no), complete=False),
        ),
    )


def _held(facts: Iterable[Event]) -> int:
    """Count from what engines told: a version is there from when it is served until it is unloaded."""
    there: dict[tuple[int, str, str], set[int]] = {}
    most = 0
    for fact in facts:
        if isinstance(fact, WeightsServed):
            own = there.setdefault((fact.lease_id, fact.incarnation, fact.policy), set())
            own.add(fact.version)
            most = max(most, len(own))
        elif isinstance(fact, PolicyUnloaded):
            there.pop((fact.lease_id, fact.incarnation, fact.policy), None)
    return most


def broken(run: dict[str, Any], kept: Kept) -> list[str]:
    """Name what does not hold of a run, as the API tells it, and its rows."""
    if run["status"] not in ("completed", "stopped"):
        return [f"{run['status']}: {run['reason_text']}"]
    return [*kept.wrong, *_steps(run, kept), *_lags(run, kept), *_told(run, kept), *_versions(run, kept)]


def _steps(run: dict[str, Any], kept: Kept) -> Iterator[str]:
    spec = run["spec"]
    steps, batch = spec["budget"]["train_steps"], spec["batch"]
    if run["step"] != steps:
        yield f"{run['step']} steps instead of {steps}"
    if spec["mechanisms"]["policy_clock"]:
        return  # each policy has a step of its own, and what it overtook is dropped
    groups, members = batch["tasks_per_step"], batch["episodes_per_task"]
    grows = _may_grow(spec)
    for cohort in range(steps):
        found, episodes = kept.groups.get(cohort, 0), kept.episodes.get(cohort, 0)
        if found < groups or (found > groups and not grows) or episodes != found * members:
            asked = f"{groups} of {members} are asked for"
            yield f"step {cohort + 1} trained {episodes} episodes of {found} groups: {asked}"


def _may_grow(spec: dict[str, Any]) -> bool:
    """Tell whether a step may train more groups: those that join it, or that would be too old for the next one."""
    redundancy, lag = spec["mechanisms"]["redundancy"], spec["mechanisms"]["lag_policy"]
    if redundancy["type"] != "extra_groups":
        return False
    waits = (
        redundancy["surplus"] == "continue" and lag["at_cut"] == "wait" and lag["bound"] < spec["budget"]["train_steps"]
    )
    return redundancy["surplus"] == "join" or waits


def _lags(run: dict[str, Any], kept: Kept) -> Iterator[str]:
    spec = run["spec"]
    for policy, lag in kept.lags.items():
        rule = spec["policies"][policy].get("lag_policy") or spec["mechanisms"]["lag_policy"]
        if lag > rule["bound"] and rule["at_cut"] != "train":
            yield f"a row of {policy} is {lag} versions old, the bound is {rule['bound']}"


def _told(run: dict[str, Any], kept: Kept) -> Iterator[str]:
    told = run["progress"]
    ends = {fate: told[f"episodes_{fate}"] for fate in _COUNTED}
    if told["episodes_proposed"] != sum(ends.values()):
        yield f"{told['episodes_proposed']} episodes were proposed, and ended: {ends}"
    extra = run["spec"]["mechanisms"]["redundancy"]
    if extra["type"] == "extra_groups" and not kept.surplus:
        yield "nothing is told of surplus groups"


def _versions(run: dict[str, Any], kept: Kept) -> Iterator[str]:
    if run["spec"]["resources"]["engine_versions"] == 1 and kept.held != 1:
        yield f"an engine held {kept.held} versions of a policy, and is to serve one at a time"


def kept_its_promises(system: System, run_no: int, *, complete: bool = True) -> None:
    """Hold an ended run to the store's promises, to its own counts, and to its log: replayed, it is what is stored.

    `complete`: its specification leaves nothing that was said untrained.
    """
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        assert [check for check in consistency_report(conn, run_no) if not check.ok] == []
        assert_accounted(conn, run_no, complete=complete)
    assert "equals the stored rows exactly" in system.manage("replay", str(run_no))
