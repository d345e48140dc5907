"""Three policies on two engines that hold one each: who has no engine is loaded when it is asked, and all are trained.

Through the real services with the real engine; afterwards the store's promises are asked, and the log is replayed.
"""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.system import MANY_DEVICES, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

ROLES = ("planner", "solver", "verifier")


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


def spec() -> dict[str, Any]:
    return {
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 2},
        "policies": {role: {"model": {"size": "S"}, "warmup": None} for role in ROLES},
        "resources": {"rollout_devices": 2, "engine_policies": 1},
        "mechanisms": {"mover": "demand"},
        "budget": {"train_steps": 3, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 4},
        "checkpoints": {"every_steps": 100},
    }


def told_of_load(api: Any, run_id: str) -> None:
    """The run's load was told while it went on: by engines, by rollout workers, and what moves took."""
    load = api.get(f"/runs/{run_id}/load?window_s=1800")
    assert max(point["engines"] for point in load["queues"]) == 2
    assert {point["policy"] for point in load["asked"]} <= set(ROLES)
    assert load["asked"], "turns of so small a model end within milliseconds, but some wait for a place"
    assert set(load["states"]) <= {"draining", "gone"}
    assert (load["live"], load["open"]) == (False, 0)
    moves = api.get(f"/runs/{run_id}/engine-moves?limit=200")["results"]
    served = [one for one in moves if one["kind"] == "engine_moved" and one["until_served_s"] is not None]
    assert served
    assert all(one["out"] != one["policy"] and one["load_s"] <= one["until_served_s"] for one in served)


def test_more_policies_than_places_are_played_and_trained(system: System) -> None:
    api = system.api()
    run_id = api.create_run(name="places", template="arithmetic", spec=spec())["id"]
    run = api.finish(run_id, 500)
    assert run["status"] == "completed", run["reason_text"]
    told_of_load(api, run_id)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
        assert not wrong
        assert_accounted(conn, run["no"])
        moved = conn.execute(
            "SELECT cause, reason FROM store.ruling WHERE run_id = %s AND kind = 'engine_moved'", [run["no"]]
        ).fetchall()
        assert {cause for cause, _ in moved} <= {"waiting", "disparity"}
        assert any("has no engine" in reason for cause, reason in moved if cause == "waiting")
        most = conn.execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM store.engine_policy p JOIN store.lease l "
            "ON l.id = p.lease_id WHERE l.run_id = %s GROUP BY p.lease_id) AS held",
            [run["no"]],
        ).fetchone()
        assert most is None or (most[0] or 0) <= 1
        versions = dict(
            conn.execute(
                "SELECT policy, max(version) FROM store.policy_version WHERE run_id = %s GROUP BY policy", [run["no"]]
            ).fetchall()
        )
        assert versions == dict.fromkeys(ROLES, 3)
        unfinished = conn.execute(
            "SELECT count(*) FROM store.command WHERE run_id = %s AND kind = 'unload_policy' AND status = 'failed'",
            [run["no"]],
        ).fetchone()
        assert unfinished == (0,)
    assert "equals the stored rows exactly" in system.manage("replay", str(run["no"]))
