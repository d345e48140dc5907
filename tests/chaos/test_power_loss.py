"""The power fails under `up`: nothing that was acknowledged is lost, nothing counts twice, and it starts again.

A kill leaves the page cache to the next start; a loss of power does not. So the whole home lies on a disk of its own,
from which everything that was not flushed disappears in one moment, with the newest part of the file system's journal.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import wait_until
from flexmarl.launcher.state import marked, read_state
from tests.support.chaos import Store
from tests.support.counting import assert_accounted
from tests.support.power import Disk, disk
from tests.support.system import System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.full, pytest.mark.timeout(1500)]

MEGABYTES = 3072
LOST_AT = (3, 7)
STEPS = 2 * LOST_AT[-1]
SPEC = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    "evaluation": {"every_steps": LOST_AT[-1], "tasks": 16},
    "budget": {"train_steps": STEPS, "target": None},
}
IN_SEGMENTS = {"FLEXMARL_PAYLOAD_BY_VALUE_BYTES": "16"}
"""Payloads go to segment files: what is not flushed of them must be named by no row."""
APPLIED = "SELECT policy, no, version FROM store.micro_batch WHERE run_id = %s AND status = 'applied'"
VERSIONS = "SELECT policy, version, digest FROM store.policy_version WHERE run_id = %s"


@pytest.fixture
def home_disk(short_tmp: Path) -> Iterator[Disk]:
    with disk(short_tmp, MEGABYTES) as made:
        yield made


def strike(system: System, own: Disk) -> None:
    """Cut the power, end whoever still runs, and bring the disk back."""
    launch = str(read_state(Home(system.home))["launch"])
    assert system.process is not None
    everything = [*marked(launch), system.process]
    own.lose_power()
    for process in everything:
        process.kill()
    system.process.wait()
    unmounted = wait_until(lambda: _unmounts(own), 60)
    assert unmounted, "something still holds the disk"
    own.mount()


def _unmounts(own: Disk) -> bool:
    try:
        own.unmount()
    except subprocess.CalledProcessError:  # busy until the last process is gone
        return False
    return True


def test_a_loss_of_power_costs_time_and_nothing_that_was_acknowledged(home_disk: Disk) -> None:
    home = home_disk.folder / "home"
    system = System(home, environment=IN_SEGMENTS)
    system.start()
    try:
        api = system.api()
        run = api.create_run(name="power", spec=SPEC)
        for at in LOST_AT:
            api.wait(run["id"], lambda run, at=at: run["step"] >= at, 300)
            store = Store(system, run["no"])
            before = [set(store.read(statement, run["no"])) for statement in (APPLIED, VERSIONS)]
            store.close()
            strike(system, home_disk)
            system.start()
            after = [set(store.read(statement, run["no"])) for statement in (APPLIED, VERSIONS)]
            store.close()
            assert all(then <= now for then, now in zip(before, after, strict=True)), "what was committed is there"
            api = system.api()
        done = api.finish(run["id"], 600)
        assert (done["status"], done["step"]) == ("completed", STEPS), done["reason_text"]
        with psycopg.connect(system.database_url) as conn:
            counted = assert_accounted(conn, run["no"])
        assert counted.in_training == done["progress"]["episodes_proposed"]
    finally:
        system.stop()
