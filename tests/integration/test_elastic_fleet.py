"""A fleet grows on free devices, gives them back to a run that waits, and grows again, through every real process."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.machine import wait_for
from tests.support.system import MANY_DEVICES, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

MOST = 3
HELD = "SELECT count(*) FROM store.lease WHERE run_id = %s AND use = 'engine' AND state = 'held'"
SERVING = """
SELECT count(DISTINCT l.id) FROM store.lease l JOIN store.engine_policy p ON p.lease_id = l.id
WHERE l.run_id = %s AND l.state = 'held' AND p.incarnation = l.incarnation
"""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


def spec(steps: int, **resources: Any) -> dict[str, Any]:
    return {
        "environment": {"latency": {"scale_s": 0.1, "sigma": 0.5, "cap_s": 0.5}},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 1},
        "policies": {role: {"model": {"size": "S"}, "warmup": None} for role in ("speaker", "listener")},
        "resources": resources,
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 1000, "tasks": 4},
        "checkpoints": {"every_steps": 1000},
    }


def test_a_fleet_gives_back_what_another_run_waits_for_and_grows_again(system: System) -> None:
    api = system.api()
    grown = spec(5000, rollout_devices={"min": 1, "max": MOST}, training_devices=MANY_DEVICES - MOST)
    first = api.create_run(name="grown", template="reference_game", spec=grown)
    with psycopg.connect(system.database_url, autocommit=True) as conn:

        def count(query: str) -> int:
            row = conn.execute(query, [first["no"]]).fetchone()
            assert row is not None
            return int(row[0])

        wait_for(lambda: count(SERVING) == MOST, 120)
        late = api.create_run(name="late", template="reference_game", spec=spec(3, rollout_devices=1))
        wait_for(lambda: count(HELD) == 1, 60)
        step = api.run(first["id"])["step"]
        api.wait(first["id"], lambda row: row["step"] >= step + 1, 120)
        late = api.finish(late["id"], 300)
        assert late["status"] == "completed", late["reason_text"]
        wait_for(lambda: count(SERVING) == MOST, 120)
        step = api.run(first["id"])["step"]
        api.wait(first["id"], lambda row: row["step"] >= step + 1, 120)
        api.act(first["id"], "stop")
        first = api.finish(first["id"], 300)
        assert first["status"] == "stopped", first["reason_text"]
        for run in (first, late):
            wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
            assert not wrong, f"{run['name']}: {wrong}"
            assert_accounted(conn, run["no"], complete=run is late)
            episodes = run["progress"]
            assert episodes["episodes_failed"] == episodes["episodes_cancelled"] == 0, "nothing failed by it"
            assert "equals the stored rows exactly" in system.manage("replay", str(run["no"]))
        leases = conn.execute(
            "SELECT count(*) FROM store.lease WHERE run_id = %s AND use = 'engine'", [first["no"]]
        ).fetchone()
        sizes = conn.execute(
            "SELECT stat, min(value), max(value) FROM store.metric WHERE run_id = %s AND name = 'fleet/engines' "
            "GROUP BY stat ORDER BY stat", [first["no"]],
        ).fetchall()  # fmt: skip
    found = {stat: (low, high) for stat, low, high in sizes}
    assert found["max"] == (1, MOST), "the series says that it shrank for whole steps, and that it grew"
    assert found["min"][0] == 1
    assert leases == (MOST + 2,), "two left, two joined in their place, and no device went to and fro"


@pytest.mark.full
def test_a_fleet_follows_measured_rates_and_its_log_says_the_same_again(system: System) -> None:
    api = system.api()
    sized = spec(5000, rollout_devices={"min": 1, "max": MOST}, training_devices=MANY_DEVICES - MOST)
    sized["mechanisms"] = {"scaling": {"type": "dead_band", "steps": 2, "hold_s": 1.0}}
    run = api.create_run(name="sized", template="reference_game", spec=sized)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        decided = "SELECT cause, reason FROM store.ruling WHERE run_id = %s AND kind = 'fleet_sized' ORDER BY seq, ord"
        wait_for(lambda: bool(conn.execute(decided, [run["no"]]).fetchall()), 180)
        cause, reason = conn.execute(decided, [run["no"]]).fetchall()[0]
        assert cause == "grow", "environments make trainers wait"
        assert "groups/s are generated" in reason
        wait_for(lambda: (conn.execute(SERVING, [run["no"]]).fetchone() or (0,))[0] > 1, 120)
        assert api.run(run["id"])["progress"]["fleet"]["why"]
        api.act(run["id"], "stop")
        run = api.finish(run["id"], 300)
        assert run["status"] == "stopped", run["reason_text"]
        wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
        assert not wrong, wrong
        assert "equals the stored rows exactly" in system.manage("replay", str(run["no"]))
