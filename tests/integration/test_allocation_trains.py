"""Policies that share trainer devices are suspended and brought back, with what they had gathered, and all are trained.

Through the real services with real trainers; afterwards the store's promises are asked, and the log is replayed.
"""

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

ROLES = ("planner", "solver", "verifier")


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


def spec(devices: int, steps: int = 3) -> dict[str, Any]:
    return {
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
        "policies": {role: {"model": {"size": "S"}, "warmup": None} for role in ROLES},
        "resources": {"training_devices": devices, "trainer_policies": 1},
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 4},
        "checkpoints": {"every_steps": 100},
    }


def asked(system: System, query: str, run_no: int) -> list[tuple[Any, ...]]:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        return conn.execute(query, {"run": run_no}).fetchall()


def kept_its_promises(system: System, run_no: int, steps: int) -> None:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        wrong = [check for check in consistency_report(conn, run_no) if not check.ok]
        assert_accounted(conn, run_no)
    assert not wrong
    versions = asked(
        system, "SELECT policy, max(version) FROM store.policy_version WHERE run_id = %(run)s GROUP BY policy", run_no
    )
    assert dict(versions) == dict.fromkeys(ROLES, steps)
    assert "equals the stored rows exactly" in system.manage("replay", str(run_no))


SWAPS = "SELECT phase, count(*), min(bytes), sum(t1 - t0) FROM store.interval WHERE run_id = %(run)s AND phase IN \
('suspend', 'resume') GROUP BY phase"
TRAINERS = "SELECT count(DISTINCT lease_id) FROM store.interval WHERE run_id = %(run)s AND phase = 'train'"
FAILED = "SELECT kind, error_code FROM store.command WHERE run_id = %(run)s AND status = 'failed'"


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 2])
def test_policies_that_share_devices_are_all_trained(system: System, devices: int) -> None:
    api = system.api()
    run = api.finish(api.create_run(name=f"on {devices}", template="arithmetic", spec=spec(devices))["id"], 500)
    assert run["status"] == "completed", run["reason_text"]
    swaps = {phase: (count, least, seconds) for phase, count, least, seconds in asked(system, SWAPS, run["no"])}
    assert swaps.keys() == {"suspend", "resume"}
    assert all(least > 1_000_000 and seconds > 0 for _, least, seconds in swaps.values())
    assert asked(system, TRAINERS, run["no"]) == [(devices,)]
    kept_its_promises(system, run["no"], 3)


def test_a_killed_trainer_takes_what_it_suspended_with_it_and_nothing_is_lost(system: System) -> None:
    api = system.api()
    run_id = api.create_run(name="killed", template="arithmetic", spec=spec(2, steps=4))["id"]
    run = api.get(f"/runs/{run_id}")
    until = time.monotonic() + 300
    while not (found := asked(system, SWAPS, run["no"])) or len(found) < 2:
        assert time.monotonic() < until, "no policy was suspended and brought back"
        time.sleep(0.1)
    [(pid,), *_] = asked(
        system,
        "SELECT pid FROM store.lease "
        "WHERE run_id = %(run)s AND use = 'trainer' AND incarnation <> '' AND state = 'held'",
        run["no"],
    )
    os.kill(pid, signal.SIGKILL)
    while not ended(pid):
        time.sleep(0.05)
    run = api.finish(run_id, 500)
    assert run["status"] == "completed", run["reason_text"]
    kept_its_promises(system, run["no"], 4)
