"""A game of each package trains through the real services, whole, while its host of processes is killed once."""

import contextlib
from collections.abc import Callable
from typing import Any

import psutil
import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.forms import form
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 2
SPEC: dict[str, Any] = {
    "batch": {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
    "budget": {"train_steps": STEPS, "target": None},
    "evaluation": {"every_steps": 2, "tasks": 4},
}
HOST = "workers.rollout.isolation.host"


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def hosts(system: System, game: str) -> list[psutil.Process]:
    worker = psutil.Process(system.processes()["rollout-worker"])
    found = []
    for one in worker.children():
        with contextlib.suppress(psutil.Error):  # it ended while it was looked at
            line = one.cmdline()
            found += [one] if HOST in line and any(f'"{game}"' in word for word in line) else []
    return found


def kill(found: list[psutil.Process]) -> bool:
    for one in found:
        one.kill()
    return bool(found)


def test_a_game_of_each_package_trains(system: System) -> None:
    api = system.api()
    for template in form(short=("nim",), full=("pursuit", "nim")):
        run = api.create_run(name=template, template=template, spec=SPEC)
        if template == "nim":
            api.wait(run["id"], lambda _: kill(hosts(system, "nim")), 300)
        done = api.finish(run["id"], 600)
        assert done["status"] == "completed", f"{template}: {done['reason_text']}"
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            assert not [check for check in consistency_report(conn, done["no"]) if not check.ok]
            assert_accounted(conn, done["no"], complete=False)
            played = dict(
                conn.execute(
                    "SELECT status, count(*) FROM store.episode WHERE run_id = %s GROUP BY 1", (done["no"],)
                ).fetchall()
            )
            reasons = conn.execute(
                "SELECT DISTINCT reason FROM store.episode WHERE run_id = %s AND status <> 'finished'", (done["no"],)
            ).fetchall()
        assert played["finished"] >= STEPS * 16 * 0.9, (played, reasons)
        assert all(reason.startswith("environment: ") for (reason,) in reasons), reasons
