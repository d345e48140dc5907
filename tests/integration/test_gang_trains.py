"""Runs whose policies are held by several trainer ranks, through the real services: trained, swapped, and struck.

Afterwards the store's promises are asked, and the log is replayed.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flexmarl.store.report import consistency_report
from tests.support.ended import ended
from tests.support.machine import slowness
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1200)]

ROLES = ("planner", "solver", "verifier")
TRAINED = "SELECT count(DISTINCT lease_id) FROM store.interval WHERE run_id = %(run)s AND phase = 'train' AND \
policy = %(policy)s"
LEASES = "SELECT pid FROM store.lease WHERE run_id = %(run)s AND \"use\" = 'trainer' AND state = 'held' \
ORDER BY id"
MEETINGS = "SELECT count(*) FROM store.command WHERE run_id = %(run)s AND kind = 'join_gang' AND status = 'done'"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder: Path = tmp_path_factory.mktemp("gangs")
    folder.chmod(0o711)
    with System(folder / "home", environment={"FLEXMARL_CPU_SHARES": "3"}) as running:
        yield running


def spec(gangs: tuple[str, ...], steps: int) -> dict[str, Any]:
    policies = {
        role: {"model": {"size": "S"}, "warmup": None, "devices": {"least": 2, "most": 2} if role in gangs else {}}
        for role in ROLES
    }
    return {
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
        "policies": policies,
        "resources": {"training_devices": 2, "trainer_policies": 1},
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 4},
        "checkpoints": {"every_steps": 100},
    }


def asked(system: System, query: str, run_no: int, **more: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        return conn.execute(query, {"run": run_no, **more}).fetchall()


def kept_its_promises(system: System, run_no: int, steps: int) -> None:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        wrong = [check for check in consistency_report(conn, run_no) if not check.ok]
    assert not wrong
    query = "SELECT policy, max(version) FROM store.policy_version WHERE run_id = %(run)s GROUP BY policy"
    assert dict(asked(system, query, run_no)) == dict.fromkeys(ROLES, steps)
    assert "leads to exactly what is stored" in system.manage("replay", str(run_no))


@pytest.mark.parametrize("gangs", [ROLES, ROLES[:1]], ids=["all", "one"])
def test_policies_that_take_two_devices_are_trained_on_both(system: System, gangs: tuple[str, ...]) -> None:
    """Three gangs that take turns on two devices, or one beside policies of a single device."""
    api = system.api()
    run = api.finish(api.create_run(name="gangs", template="arithmetic", spec=spec(gangs, 3))["id"], 600)
    assert run["status"] == "completed", run["reason_text"]
    for policy in gangs:
        assert asked(system, TRAINED, run["no"], policy=policy) == [(2,)]
    [(meetings,)] = asked(system, MEETINGS, run["no"])
    assert meetings >= len(gangs)
    kept_its_promises(system, run["no"], 3)


@pytest.mark.parametrize("struck", ["leader or follower", "the other"])
def test_a_killed_rank_is_replaced_and_nothing_is_lost(system: System, struck: str) -> None:
    api = system.api()
    run_id = api.create_run(name="struck", template="arithmetic", spec=spec(ROLES, 4))["id"]
    run = api.get(f"/runs/{run_id}")
    until = time.monotonic() + 200 * slowness()
    while asked(system, TRAINED, run["no"], policy="solver") != [(2,)]:
        assert time.monotonic() < until, "no gang was trained on"
        time.sleep(0.1)
    pids = [pid for (pid,) in asked(system, LEASES, run["no"])]
    pid = pids[0 if struck == "the other" else -1]
    os.kill(pid, signal.SIGKILL)
    while not ended(pid):
        time.sleep(0.05)
    run = api.finish(run_id, 900)
    assert run["status"] == "completed", run["reason_text"]
    kept_its_promises(system, run["no"], 4)
