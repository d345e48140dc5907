"""The supervisor or a server dies in mid-run: the run goes on after the repair and its counts add up."""

import time
from collections.abc import Iterator
from typing import Any

import psutil
import psycopg
import pytest

from flexmarl.launcher.processes import wait_until
from tests.support.counting import assert_accounted
from tests.support.ended import ended
from tests.support.system import Api, ApiError, System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(1500)]

STEPS = 20
SPEC = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    "evaluation": {"every_steps": 10, "tasks": 16},
    "budget": {"train_steps": STEPS, "target": None},
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("services die") / "home") as system:
        yield system


def started(api: Api, name: str) -> str:
    run_id = str(api.create_run(name=name, spec=SPEC)["id"])
    api.wait(run_id, lambda run: run["step"] >= 4, 300)
    return run_id


def alive(processes: dict[str, int]) -> list[str]:
    return [name for name, pid in processes.items() if not ended(pid)]


def assert_finished(system: System, api: Api, run_id: str) -> None:
    run = finished(api, run_id)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    report = api.consistency(run_id)
    assert report["ok"], report
    with psycopg.connect(system.database_url) as conn:
        assert_accounted(conn, run["no"])


def finished(api: Api, run_id: str) -> dict[str, Any]:
    """Wait for the end; the web process may be away for a while."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return api.finish(run_id, 180)
        except (OSError, ApiError) as error:
            refused = isinstance(error, ApiError) and error.status < 500
            if refused or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_a_killed_server_costs_time_and_nothing_else(system: System, server: str) -> None:
    api = system.api()
    run_id = started(api, f"kill {server}")
    victims = [p for p in psutil.Process(system.process.pid).children() if p.name().startswith(server)]
    assert len(victims) == 1
    victims[0].kill()
    assert_finished(system, api, run_id)


def test_a_run_survives_sigkill_of_the_supervisor(system: System) -> None:
    api = system.api()
    run_id = started(api, "kill supervisor")
    workers = system.processes()
    system.process.kill()
    system.process.wait()
    assert wait_until(lambda: not alive(workers), 60), alive(workers)
    system.start()
    assert_finished(system, Api(system.url, api.token), run_id)
