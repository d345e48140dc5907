"""A policy that two trainer ranks share is trained through the real services, and formed anew after one was killed."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.ended import ended
from tests.support.system import MANY_DEVICES, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

ROLES = ("speaker", "listener")
HELD = "SELECT pid FROM store.lease WHERE run_id = %s AND use = 'trainer' AND incarnation <> '' AND state = 'held'"


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


def spec(steps: int) -> dict[str, Any]:
    return {
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
        "policies": {role: {"model": {"size": "S"}, "warmup": None, "devices": 2} for role in ROLES},
        "resources": {"training_devices": 2},
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 4},
        "checkpoints": {"every_steps": 100},
    }


def kept_its_promises(system: System, run: dict[str, Any], steps: int) -> None:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        assert not [check for check in consistency_report(conn, run["no"]) if not check.ok]
        assert_accounted(conn, run["no"])
        versions = conn.execute(
            "SELECT policy, max(version) FROM store.policy_version WHERE run_id = %s GROUP BY policy", [run["no"]]
        ).fetchall()
        ranks = conn.execute(
            "SELECT policy, count(DISTINCT lease_id) FROM store.interval WHERE run_id = %s AND phase = 'train' "
            "GROUP BY policy",
            [run["no"]],
        ).fetchall()
    assert dict(versions) == dict.fromkeys(ROLES, steps)
    assert all(count >= 2 for _, count in ranks)
    assert "equals the stored rows exactly" in system.manage("replay", str(run["no"]))


@pytest.mark.full
def test_two_policies_take_turns_on_the_same_two_ranks(system: System) -> None:
    api = system.api()
    run = api.finish(api.create_run(name="gangs", template="reference_game", spec=spec(3))["id"], 600)
    assert run["status"] == "completed", run["reason_text"]
    kept_its_promises(system, run, 3)


def test_a_gang_that_lost_a_rank_is_formed_anew(system: System) -> None:
    api = system.api()
    run_id = api.create_run(name="lost rank", template="reference_game", spec=spec(3))["id"]
    until = time.monotonic() + 300
    while api.get(f"/runs/{run_id}")["step"] < 1:
        assert time.monotonic() < until, "no step was made"
        time.sleep(0.1)
    no = api.get(f"/runs/{run_id}")["no"]
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        pid = conn.execute(HELD + " ORDER BY id DESC", [no]).fetchone()[0]  # type: ignore[index]
    os.kill(pid, signal.SIGKILL)
    while not ended(pid):
        time.sleep(0.05)
    run = api.finish(run_id, 600)
    assert run["status"] == "completed", run["reason_text"]
    kept_its_promises(system, run, 3)
