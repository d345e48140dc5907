"""SIGKILL of `up` at moments of its start: whatever it leaves half made, the next `up` takes it from there."""

import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import wait_until
from flexmarl.launcher.state import marked, read_state
from tests.support.counting import assert_accounted
from tests.support.system import Api, System

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.services, pytest.mark.timeout(1500)]

STEPS = 8
SPEC = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
    "evaluation": {"every_steps": 4, "tasks": 4},
    "budget": {"train_steps": STEPS, "target": None},
}
MOMENTS: dict[str, Callable[[Home], bool]] = {
    "the home has its secrets": lambda home: (home.root / "secrets.json").exists(),
    "initdb is at work": lambda home: (home.root / "postgres" / "data.new" / "PG_VERSION").exists(),
    "the server starts": lambda home: (home.root / "postgres" / "data" / "postmaster.pid").exists(),
    "addresses are published": lambda home: (home.run / "environment.json").exists(),
    "the database is migrated": lambda home: (home.logs / "prepare.log").exists(),
    "processes start": lambda home: bool(read_state(home).get("processes")),
}
"""In the order in which a first start comes by; each start goes on with what the killed one before has left."""

LATER: dict[str, Callable[[Home, float], bool]] = {
    "the server recovers": lambda home, since: newer(home.root / "postgres" / "data" / "postmaster.pid", since),
    "addresses are published": lambda home, since: newer(home.run / "environment.json", since),
    "processes start": lambda home, since: (
        newer(home.root / "up.json", since) and bool(read_state(home).get("processes"))
    ),
}
"""In the order of a start that finds data, and a run that was at work."""


STRUCK = list(MOMENTS)
STRUCK_LATER = list(LATER)


def newer(path: Path, since: float) -> bool:
    return path.exists() and path.stat().st_mtime > since


def kill_at(system: System, moment: str, reached: Callable[[], bool]) -> None:
    """Start `up` and kill it when the moment has come."""
    starting = system.spawn()
    try:
        came = wait_until(lambda: starting.poll() is not None or reached(), 120)
        assert came, f"never came: {moment}"
        assert starting.poll() is None, f"{moment}: up ended by itself:\n{system.tail()}"
    finally:
        starting.kill()
        starting.wait()


def test_a_start_that_was_killed_anywhere_is_taken_up_by_the_next(short_tmp: Path) -> None:
    system = System(short_tmp / "home")
    home = Home(system.home)
    secrets: str | None = None
    for moment in STRUCK:
        kill_at(system, moment, lambda: MOMENTS[moment](home))  # noqa: B023 - asked at once
        kept = (system.home / "secrets.json").read_text()
        assert secrets in (None, kept), f"{moment}: secrets were made anew, and open no database any more"
        secrets = kept
    with system:
        api = system.api()
        run = api.create_run(name="through starts", spec=SPEC)
        api.wait(run["id"], lambda found: found["step"] >= 1, 300)
        assert system.process is not None
        system.process.kill()
        system.process.wait()
        for moment in STRUCK_LATER:
            since = time.time()
            kill_at(system, moment, lambda: LATER[moment](home, since))  # noqa: B023 - asked at once
        system.start()
        run = Api(system.url, api.token).finish(run["id"], 300)
        assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
        with psycopg.connect(system.database_url) as conn:
            counted = assert_accounted(conn, run["no"])
        assert counted.in_training == run["progress"]["episodes_proposed"]
        launch = str(read_state(home)["launch"])
    assert not list(marked(launch)), "nothing of it is left"
