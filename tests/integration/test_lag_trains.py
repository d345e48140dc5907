"""Lag policies train the reference game through the real services, and in the full form the team learns by them.

The store is asked afterwards: every row that was trained is within its policy's bound, none was trained twice, and
where replies follow newer weights some rows were made by more than one version, with a log-probability per token.
"""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1500)]

SLOW = {"latency": {"scale_s": 0.1, "sigma": 1.5, "cap_s": 2.0}}
"""Slow enough that some environment is overtaken, also where agents answer late."""
STEPS = 45
PRESETS = ("one_step_off", "bounded_async", "active_partial")

LAGS: dict[str, dict[str, Any]] = {
    "continue": {"bound": 2, "in_flight": "continue", "at_cut": "refresh"},
    "restart_turn": {"bound": 1, "in_flight": "restart_turn"},
    "discard": {"bound": 2, "in_flight": "discard"},
    "at most one": {"bound": 1},
    "none": {"bound": 0},
}
SURPLUS: dict[str, dict[str, Any]] = {
    "extra_members": {"type": "extra_members", "extra": 2},
    "extra_environments": {"type": "extra_environments", "extra": 2},
    "join": {"type": "extra_groups", "extra": 4, "surplus": "join"},
    "cancel": {"type": "extra_groups", "extra": 4, "surplus": "cancel"},
    "keep": {"type": "extra_groups", "extra": 4, "surplus": "keep"},
}
OPTIONS = {
    surplus: {"lag_policy": LAGS[lag], "redundancy": SURPLUS[surplus]}
    for lag, surplus in {
        "continue": "cancel", "restart_turn": "extra_members", "discard": "join", "none": "extra_environments",
        "at most one": "keep",
    }.items()
}  # fmt: skip
"""What no preset picks, in pairs of which neither member hides what is asked of the other: each for a few steps."""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def spec() -> dict[str, Any]:
    return {
        "environment": {"latency": {"scale_s": 0.02, "sigma": 1.0, "cap_s": 0.5}},
        "batch": {"tasks_per_step": 16, "episodes_per_task": 8, "micro_batch_groups": 4, "rollout_groups": 2},
        "policies": {role: {"model": {"size": "S"}} for role in ("speaker", "listener")},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 30, "tasks": 16},
        "checkpoints": {"every_steps": 100},
    }


def test_each_lag_preset_trains_within_its_bound_and_learns(system: System) -> None:
    api = system.api()
    runs = {
        name: api.create_run(name=name, template="reference_game", preset=name, spec=spec())["id"] for name in PRESETS
    }
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        for name, run_id in runs.items():
            run = api.finish(run_id, 400)
            assert run["status"] == "completed", f"{name}: {run['reason_text']}"
            wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
            assert not wrong, f"{name}: {wrong}"
            assert_accounted(conn, run["no"], complete=False)
            check_lags(conn, run["no"], run["spec"]["mechanisms"]["lag_policy"]["bound"])
            if name == "active_partial":
                assert sum(points(conn, run["no"], "groups/handed_on", "sum")) > 0
            assert (newer_than_pinned(conn, run["no"]) > 0) is (name != "one_step_off")
            rewards = points(conn, run["no"], "reward/team", "mean")
            first, last = sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10
            assert last > first + 0.1, f"{name}: reward went from {first:.3f} to {last:.3f}"


def test_every_other_option_runs_and_its_counts_add_up(system: System) -> None:
    api = system.api()
    short = {"budget": {"train_steps": 5, "target": None}, "evaluation": {"every_steps": 5, "tasks": 4}}
    slow = {"extra_environments": {"environment": SLOW}}
    runs = {
        name: api.create_run(
            name=name,
            template="reference_game",
            spec=spec() | short | slow.get(name, {}) | {"mechanisms": options},
        )["id"]
        for name, options in OPTIONS.items()
    }
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        for name, run_id in runs.items():
            run = api.finish(run_id, 300)
            assert run["status"] == "completed", f"{name}: {run['reason_text']}"
            wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
            assert not wrong, f"{name}: {wrong}"
            assert_accounted(conn, run["no"], complete=False)
            found = api.run(run_id)["progress"]
            fates = [found[f"episodes_{fate}"] for fate in ("finished", "failed", "cancelled")]
            assert found["episodes_proposed"] == sum(fates), name
            if name in ("cancel", "keep", "extra_members"):
                assert found["episodes_cancelled"] > 0, name
            if name == "extra_environments":
                assert sum(points(conn, run["no"], "episodes/replaced", "sum")) > 0, name
                assert fates == [found["episodes_proposed"], 0, 0], name


def points(conn: psycopg.Connection, run_no: int, name: str, stat: str) -> list[float]:
    rows = conn.execute(
        "SELECT value FROM store.metric WHERE run_id = %s AND name = %s AND stat = %s ORDER BY step, agent",
        [run_no, name, stat],
    ).fetchall()
    return [row[0] for row in rows]


def newer_than_pinned(conn: psycopg.Connection, run_no: int) -> int:
    """Count rows of training that newer weights than those their group pinned had a part in."""
    row = conn.execute(
        """
        SELECT count(*) FROM store.sample s JOIN store.episode e USING (run_id, draw, member, attempt)
        WHERE s.run_id = %s AND e.origin = 'train' AND EXISTS (
          SELECT 1 FROM unnest(s.segments) WITH ORDINALITY AS part(version, ord)
          WHERE part.ord %% 2 = 1 AND part.version > (e.pins ->> s.policy)::int)
        """,
        [run_no],
    ).fetchone()
    assert row is not None
    return int(row[0])


def check_lags(conn: psycopg.Connection, run_no: int, bound: int) -> None:
    """The series say that rows lag, and never beyond the bound."""
    for name in ("staleness/start", "staleness/completion", "staleness/token"):
        highest = points(conn, run_no, name, "max")
        assert len(highest) == 2 * STEPS
        assert max(highest) <= bound
    assert max(points(conn, run_no, "staleness/start", "max")) >= 1
    assert max(points(conn, run_no, "staleness/start", "mean")) > 0
