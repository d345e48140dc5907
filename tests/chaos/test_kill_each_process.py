"""SIGKILL of each process in mid-run: the run still finishes and its counts add up."""

import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.system import Api, System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(1500)]

STEPS = 24


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("chaos") / "home") as system:
        yield system


@pytest.fixture(scope="module")
def api(system: System) -> Api:
    return system.api()


def start(api: Api, name: str) -> str:
    overrides = {
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 12, "tasks": 32},
        "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    }
    return api.create_run(name=name, template="reference_game", spec=overrides)["id"]


@pytest.mark.parametrize("victim", ["rollout-worker", "device-worker", "driver", "node", "web"])
def test_a_killed_process_costs_time_and_nothing_else(system: System, api: Api, victim: str) -> None:
    run_id = start(api, f"kill {victim}")
    api.wait(run_id, lambda run: run["step"] >= 4, 300)
    system.kill(victim)
    deadline = time.monotonic() + 120
    while True:
        try:
            api.run(run_id)
            break
        except OSError:  # the web process is the victim
            assert time.monotonic() < deadline
            time.sleep(0.2)
    run = api.finish(run_id, 600)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    assert_counts_add_up(system, api, run)


def assert_counts_add_up(system: System, api: Api, run: dict) -> None:
    report = api.get(f"/runs/{run['id']}/consistency")
    failed = [check for check in report["checks"] if not check["ok"]]
    assert not failed, failed
    progress = run["progress"]
    ended = progress["episodes_finished"] + progress["episodes_failed"] + progress["episodes_cancelled"]
    assert progress["episodes_proposed"] == ended
    with psycopg.connect(system.database_url) as conn:
        trained = conn.execute(
            "SELECT count(*), count(DISTINCT key) FROM store.micro_batch m, jsonb_array_elements(m.keys) AS key "
            "WHERE m.run_id = %s AND m.status = 'applied'",
            [run["no"]],
        ).fetchone()
        versions = conn.execute(
            "SELECT policy, max(version), count(*) FROM store.policy_version WHERE run_id = %s GROUP BY policy",
            [run["no"]],
        ).fetchall()
    assert trained is not None
    assert trained[0] == trained[1] > 0, "no sample is trained twice"
    assert {(top, rows) for _, top, rows in versions} == {(STEPS, STEPS + 1)}, "every step is one version, once"


def test_losing_all_of_the_broker_loses_nothing(system: System, api: Api) -> None:
    import json

    import redis

    run_id = start(api, "flushall")
    api.wait(run_id, lambda run: run["step"] >= 4, 300)
    url = json.loads((system.home / "run" / "environment.json").read_text())["REDIS_URL"]
    with redis.Redis.from_url(url) as client:
        client.flushall()
    run = api.finish(run_id, 600)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    assert_counts_add_up(system, api, run)
