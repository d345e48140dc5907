"""A run with one vLLM engine of two devices through the real services: both are leased and released together, it
trains, an engine that lost a rank is replaced whole, and the store keeps its promises.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.ended import ended
from tests.support.engines import needs_vllm
from tests.support.system import MANY_DEVICES, ApiError, System

pytestmark = [needs_vllm, pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 4
ENGINE = """
SELECT pid FROM store.lease WHERE run_id = %s AND use = 'engine' AND endpoint <> '' AND state = 'held'
"""
LEASED = "SELECT device_id, leader IS NOT NULL, rank, state FROM store.lease WHERE run_id = %s AND use = 'engine'"
BUSY = "SELECT count(DISTINCT device_id) FROM store.interval WHERE run_id = %s AND phase = 'rollout'"


def spec(**resources: object) -> dict[str, Any]:
    return {
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
        "policies": {
            role: {"model": {"size": "M"}, "warmup": None, "tuning": {"type": "lora", "rank": 4}}
            for role in ("guesser", "hinter")
        },
        "resources": {"engine": "vllm", "rollout_devices": 2, "engine_devices": 2, **resources},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 4},
        "checkpoints": {"every_steps": 100},
    }


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"engine": "torch"}, "The torch engine computes on one device"),
        ({"rollout_devices": 3}, "Engines of 2 devices use a multiple of 2; 3 is none"),
        ({"rollout_devices": 3, "engine_devices": 3}, "4 attention heads.*not divisible among 3 devices"),
    ],
)
def test_what_no_engine_can_be_is_refused_at_submit(system: System, resources: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError, match=said):
        system.api().create_run(name="refused", template="hot_cold", spec=spec(**resources))


@pytest.mark.full
def test_an_engine_of_two_devices_trains_and_is_replaced_whole(system: System) -> None:
    api = system.api()
    run_id = api.create_run(name="two devices", template="hot_cold", spec=spec())["id"]
    run = api.wait(run_id, lambda run: run["step"] >= 1, 500)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        held = sorted(row for row in conn.execute(LEASED, [run["no"]]).fetchall() if row[3] == "held")
        assert [(leads, rank) for _, leads, rank, _ in held] == [(False, 0), (True, 1)]
        (pid,) = conn.execute(ENGINE, [run["no"]]).fetchone()  # type: ignore[misc]
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        ranks = [one for one in family[1:] if one.memory_info().rss > 100 * 2**20]
        assert len(ranks) == 2
        shown = api.get(f"/runs/{run_id}/engines")["results"]
        assert [engine["devices"] for engine in shown] == [[row[0] for row in held]]
        os.kill(ranks[1].pid, signal.SIGKILL)
        run = api.finish(run_id, 700)
        assert run["status"] == "completed", run["reason_text"]
        assert run["step"] == STEPS
        assert all(ended(process) for process in family)
        lost = "SELECT body ->> 'reason' FROM store.event WHERE run_id = %s AND kind = 'child_lost'"
        reasons = [row[0] for row in conn.execute(lost, [run["no"]]).fetchall()]
        assert any("of the 2 of this engine ended with signal 9" in reason for reason in reasons), reasons
        assert conn.execute(BUSY, [run["no"]]).fetchone() == (2,)
        wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
        assert not wrong, wrong
        assert_accounted(conn, run["no"])
        until = time.monotonic() + 60.0
        while {row[3] for row in conn.execute(LEASED, [run["no"]]).fetchall()} != {"ended"}:
            assert time.monotonic() < until, "a device is held after the end"
            time.sleep(0.1)
    assert "equals the stored rows exactly" in system.manage("replay", str(run["no"]))
