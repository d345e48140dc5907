"""The real device worker process with a fake child: kills, restarts, releases."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import dramatiq
import psutil
import psycopg
import pytest

from flexmarl.contracts.commands import HostLease
from flexmarl.contracts.events import DeviceUse
from flexmarl.store import commands, engines, leases
from tests.support.store_story import Story
from workers.broker import make_broker

pytestmark = pytest.mark.services
T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
CHILDREN = Path(__file__).parent / "children"


class DeviceWorkers:
    """Starts device worker processes and pushes commands as a driver does."""

    def __init__(self, story: Story, environment: dict[str, str], redis_url: str) -> None:
        self.story = story
        self.environment = environment
        self.broker = make_broker(redis_url)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, **extra: str) -> "subprocess.Popen[bytes]":
        script = str(CHILDREN / "fake_device_worker.py")
        process = subprocess.Popen(
            [sys.executable, script, "--role", "device"], env={**self.environment, **extra}, cwd=ROOT
        )
        self.processes.append(process)
        return process

    def host(self) -> tuple[int, int]:
        """Lease the engine's device and order its hosting; returns (lease, command)."""
        lease_id = self.story.granted()[DeviceUse.ENGINE]
        no = self.story.issue(HostLease(lease_id=lease_id, device_id="box.cpu0", use=DeviceUse.ENGINE))
        return lease_id, no

    def push(self) -> None:
        due = [one for one in commands.due(self.story.conn, 1) if one.kind == "host_lease"]
        for one in due:
            self.broker.enqueue(
                dramatiq.Message(queue_name=one.queue, actor_name=one.kind, args=(1, one.no), kwargs={}, options={})
            )
        commands.mark_sent(self.story.conn, 1, [one.no for one in due])

    def serving(self, besides: str = "", within_s: float = 20.0) -> engines.EngineRoute:
        """Wait for an engine of another incarnation, pushing meanwhile."""

        def look() -> engines.EngineRoute | None:
            self.push()
            found = [route for route in engines.routes(self.story.conn, 1) if route.incarnation != besides]
            return found[0] if found else None

        return wait_for(look, within_s)

    def lease(self) -> tuple[str, int, float, int]:
        row = self.story.conn.execute(
            "SELECT state, pid, pid_started, fence FROM store.lease WHERE device_id = 'box.cpu0'"
        ).fetchone()
        assert row is not None
        return row

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_for(look: Callable[[], T], within_s: float = 20.0) -> T:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    pytest.fail(f"did not happen within {within_s} s")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def workers(store_conn: psycopg.Connection, store_url: str, redis_url: str, tmp_path: Path) -> Iterator[DeviceWorkers]:
    story = Story(store_conn).start()
    environment = {
        **os.environ,
        "DATABASE_URL": store_url,
        "REDIS_URL": redis_url,
        "FLEXMARL_HOME": str(tmp_path),
        "FLEXMARL_NODE": "box",
        "FLEXMARL_CLUSTER_KEY": "key",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "platform"), str(ROOT), str(CHILDREN)]),
    }
    made = DeviceWorkers(story, environment, redis_url)
    yield made
    made.stop()


def test_a_killed_child_is_replaced_within_a_second(workers):
    workers.start()
    workers.host()
    first = workers.serving()
    pid = workers.lease()[1]
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    second = workers.serving(first.incarnation)
    assert time.monotonic() - began < 5
    assert second.endpoint != first.endpoint
    assert second.secret != first.secret
    assert workers.story.kinds() == ["devices_granted", "child_ready", "child_lost", "child_ready"]


def test_a_killed_worker_takes_its_child_along_and_its_successor_hosts_again(workers):
    first_worker = workers.start()
    workers.host()
    first = workers.serving()
    pid = workers.lease()[1]
    first_worker.kill()
    first_worker.wait()
    wait_for(lambda: not alive(pid), 2)
    workers.start()
    began = time.monotonic()
    second = workers.serving(first.incarnation)
    assert time.monotonic() - began < 10
    assert workers.lease()[3] == 2
    assert second.incarnation != first.incarnation
    assert workers.story.kinds() == ["devices_granted", "child_ready", "child_lost", "child_ready"]


def test_a_successor_proves_a_child_dead_that_outlived_its_worker(workers):
    """The former child runs on (as if the kernel's tie had failed): it dies before the next one starts."""
    workers.host()
    survivor = subprocess.Popen(["sleep", "60"], start_new_session=True)
    no = workers.story.conn.execute("SELECT no FROM store.command WHERE kind = 'host_lease'").fetchone()[0]
    taken = workers.story.take(no)
    hosting = leases.take_hosting(workers.story.conn, taken, 30)
    leases.child_started(workers.story.conn, hosting, survivor.pid, psutil.Process(survivor.pid).create_time())
    workers.story.lapse(no)
    try:
        workers.start()
        workers.serving()
        assert survivor.wait(5) == -signal.SIGKILL
    finally:
        survivor.kill()


def test_a_reused_process_number_is_left_alone(workers):
    workers.host()
    innocent = subprocess.Popen(["sleep", "60"], start_new_session=True)
    no = workers.story.conn.execute("SELECT no FROM store.command WHERE kind = 'host_lease'").fetchone()[0]
    hosting = leases.take_hosting(workers.story.conn, workers.story.take(no), 30)
    leases.child_started(workers.story.conn, hosting, innocent.pid, 12.0)
    workers.story.lapse(no)
    try:
        workers.start()
        workers.serving()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_sigterm_leaves_the_lease_to_the_next_worker(workers):
    worker = workers.start()
    workers.host()
    first = workers.serving()
    pid = workers.lease()[1]
    began = time.monotonic()
    worker.terminate()
    assert worker.wait(10) == 0
    assert time.monotonic() - began < 5
    assert not alive(pid)
    assert workers.lease()[0] == "held"
    workers.start()
    began = time.monotonic()
    workers.serving(first.incarnation)
    assert time.monotonic() - began < 4  # no time-out had to pass


def test_a_released_lease_ends_after_its_child_even_a_stubborn_one(workers):
    workers.environment["FAKE_CHILD_STUBBORN"] = "1"
    workers.start()
    lease_id, no = workers.host()

    def started() -> int | None:
        workers.push()
        return workers.lease()[1]

    pid = wait_for(started)
    leases.request_release(workers.story.conn, 1, lease_id)
    wait_for(lambda: workers.lease()[0] == "ended", 15)
    assert not alive(pid)
    assert leases.free_devices(workers.story.conn)
    status = workers.story.conn.execute("SELECT status FROM store.command WHERE no = %s", [no]).fetchone()
    assert status == ("done",)


def test_a_child_that_dies_again_and_again_ends_the_lease_with_a_reason(workers):
    workers.environment["FAKE_CHILD_LIFE_S"] = "0.1"
    workers.start()
    workers.host()
    workers.push()
    wait_for(lambda: workers.lease()[0] == "ended", 30)
    kinds = workers.story.kinds()
    assert kinds[-1] == "lease_ended"
    assert "code 7, 5 times" in workers.story.handled[-1].reason


def test_children_get_no_credentials(workers):
    workers.start()
    workers.host()
    workers.serving()
    environment = psutil.Process(workers.lease()[1]).environ()
    assert not {"DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY"} & set(environment)
    assert environment["OMP_NUM_THREADS"] == "1"


def test_a_message_of_a_killed_worker_comes_back_in_seconds(workers, redis_url):
    """The broker's own redelivery, without the driver sending again."""
    first_worker = workers.start()
    _, no = workers.host()
    first = workers.serving()
    first_worker.kill()
    first_worker.wait()
    workers.story.lapse(no)
    workers.start()
    began = time.monotonic()
    wait_for(lambda: [r for r in engines.routes(workers.story.conn, 1) if r.incarnation != first.incarnation], 15)
    assert time.monotonic() - began < 12
