"""SIGKILL of `up` at moments of its start: whatever it leaves half made, the next `up` takes it from there."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import wait_until
from flexmarl.launcher.state import marked, read_state
from tests.support.counting import assert_accounted
from tests.support.system import System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(1500)]

STEPS = 2
SPEC = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
    "evaluation": {"every_steps": 2, "tasks": 4},
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


def test_a_start_that_was_killed_anywhere_is_taken_up_by_the_next(short_tmp: Path) -> None:
    system = System(short_tmp / "home")
    home = Home(system.home)
    secrets: str | None = None
    for moment, reached in MOMENTS.items():
        starting = system.spawn()
        try:
            came = wait_until(lambda: starting.poll() is not None or reached(home), 120)  # noqa: B023 - asked at once
            assert came, f"never came: {moment}"
            assert starting.poll() is None, f"{moment}: up ended by itself:\n{system.tail()}"
        finally:
            starting.kill()
            starting.wait()
        kept = (system.home / "secrets.json").read_text()
        assert secrets in (None, kept), f"{moment}: secrets were made anew, and open no database any more"
        secrets = kept
    with system:
        api = system.api()
        run = api.finish(api.create_run(name="after all", spec=SPEC)["id"], 300)
        assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
        with psycopg.connect(system.database_url) as conn:
            assert_accounted(conn, run["no"])
        launch = str(read_state(home)["launch"])
    assert not list(marked(launch)), "nothing of it is left"
