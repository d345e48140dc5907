"""The real device worker process with a fake child: kills, restarts, releases."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import psutil
import psycopg
import pytest

from flexmarl.contracts.plane_tokens import PlaneRefused, TokenPlane, check
from flexmarl.store.control import engines, leases
from flexmarl.store.control.engines import EngineRoute
from tests.support.ended import ended
from tests.support.little_memory import little_memory
from tests.support.machine import Machine, slowness, wait_for
from tests.support.store_story import Story
from workers.children import TERM_S
from workers.hosting import RENEW_S
from workers.last_intervals import ANSWER_S
from workers.lives import HANGS, MEMORY
from workers.rollout.engines.wire import LoadRequest
from workers.watchdog import SILENT_PROBES

pytestmark = pytest.mark.services


@pytest.fixture
def workers(store_conn: psycopg.Connection, store_url: str, redis_url: str, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(Story(store_conn).start(), store_url, redis_url, tmp_path)
    yield machine
    machine.stop()


def test_a_killed_child_is_replaced_within_a_second(workers):
    workers.start()
    workers.host()
    first = workers.serving()
    first_secret = workers.secret()
    pid = workers.lease()[1]
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    second = workers.serving(first.incarnation)
    assert time.monotonic() - began < 5 * slowness()
    assert second.endpoint != first.endpoint
    assert check(first_secret, first.token, 1, time.time()).plane is TokenPlane.ROLLOUT
    with pytest.raises(PlaneRefused):
        check(first_secret, second.token, 1, time.time())
    assert workers.story.kinds() == ["devices_granted", "child_ready", "child_lost", "child_ready"]


def test_a_killed_worker_takes_its_child_along_and_its_successor_hosts_again(workers):
    first_worker = workers.start()
    workers.host()
    first = workers.serving()
    pid = workers.lease()[1]
    first_worker.kill()
    first_worker.wait()
    wait_for(lambda: ended(pid))
    workers.start()
    began = time.monotonic()
    second = workers.serving(first.incarnation)
    assert time.monotonic() - began < 10 * slowness()
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
        assert survivor.wait(60) == -signal.SIGKILL
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
    worker.terminate()
    assert worker.wait(60) == 0
    assert ended(pid)
    assert workers.lease()[0] == "held"
    lapsed = "SELECT expires_at <= clock_timestamp() FROM store.lease WHERE device_id = 'box.cpu0'"
    order = "SELECT status, next_send <= clock_timestamp() FROM store.command WHERE kind = 'host_lease'"
    assert workers.story.conn.execute(lapsed).fetchone() == (True,), "no time-out has to pass"
    assert workers.story.conn.execute(order).fetchone() == ("open", True)
    workers.start()
    workers.serving(first.incarnation)


def test_a_released_lease_ends_after_its_child_even_a_stubborn_one(workers):
    workers.environment["FAKE_CHILD_STUBBORN"] = "1"
    workers.start()
    lease_id, no = workers.host()

    def started() -> int | None:
        workers.push()
        return workers.lease()[1]

    pid = wait_for(started)
    leases.request_release(workers.story.conn, 1, lease_id)
    wait_for(lambda: workers.lease()[0] == "ended", 60)
    assert ended(pid)
    workers.story.conn.execute("UPDATE store.node SET heartbeat_at = clock_timestamp()")
    assert leases.supply(workers.story.conn).free, "free again"
    status = workers.story.conn.execute("SELECT status FROM store.command WHERE no = %s", [no]).fetchone()
    assert status == ("done",)


def load(workers: Machine) -> EngineRoute:
    """Let the child work, so that it closes an interval; only its host's secret opens that."""
    child = workers.serving()
    headers = {"Authorization": f"Bearer {workers.secret()}", "Content-Type": "application/json"}
    body = msgspec.json.encode(LoadRequest("solver", 1, "d" * 64))
    with urlopen(Request(child.endpoint + "/load", body, headers), timeout=5) as answer:
        assert answer.status == 200
    return child


def test_what_a_child_did_last_is_stored_before_it_is_stopped(workers):
    """No node agent runs here: its host alone asks the child once more."""
    workers.start()
    lease_id, _ = workers.host()
    child = load(workers)
    leases.request_release(workers.story.conn, 1, lease_id)
    wait_for(lambda: workers.lease()[0] == "ended", 60)
    rows = workers.story.conn.execute("SELECT lease_id, incarnation, ord, phase FROM store.interval").fetchall()
    assert rows == [(lease_id, child.incarnation, 0, "train")]


def test_a_child_that_does_not_answer_is_stopped_in_time(workers):
    workers.start()
    lease_id, _ = workers.host()
    load(workers)
    os.kill(workers.lease()[1], signal.SIGSTOP)
    leases.request_release(workers.story.conn, 1, lease_id)
    began = time.monotonic()
    wait_for(lambda: workers.lease()[0] == "ended", 60)
    assert time.monotonic() - began < (RENEW_S + ANSWER_S + TERM_S + 3) * slowness()
    assert workers.story.conn.execute("SELECT count(*) FROM store.interval").fetchone() == (0,)


def test_a_child_that_stands_alone_is_found_killed_and_replaced(workers, tmp_path):
    """Its worker lives and renews the lease: only what the child does tells."""
    workers.environment["FLEXMARL_LOG_DIR"] = str(tmp_path)
    workers.start()
    lease_id, _ = workers.host()
    first = workers.serving()
    pid = workers.lease()[1]
    os.kill(pid, signal.SIGSTOP)
    second = workers.serving(first.incarnation, 60)
    assert ended(pid)
    assert workers.lease()[3] == 1, "the same host"
    assert second.endpoint != first.endpoint
    workers.story.decide()
    why = [event.reason for event in workers.story.handled if event.kind == "child_lost"]
    assert len(why) == 1
    assert why[0].startswith(f"it hung: {SILENT_PROBES} probes")
    assert "restarted automatically" in why[0]
    assert "Fatal Python error: Aborted" in (tmp_path / f"engine-{lease_id}.log").read_text()


@pytest.mark.full
def test_work_of_which_nothing_gets_done_is_a_hang_and_the_third_ends_the_lease(workers):
    workers.environment |= {"FAKE_CHILD_WORK": "stuck", "FLEXMARL_CHILD_STUCK_S": "2"}
    workers.start()
    workers.host()
    workers.push()
    wait_for(lambda: workers.lease()[0] == "ended", 90)
    assert workers.story.kinds().count("child_lost") == HANGS
    assert workers.story.handled[-1].kind == "lease_ended"
    assert f"no progress for 2 s, waiting throughout, {HANGS} times" in workers.story.handled[-1].reason


@pytest.mark.full
def test_slow_work_is_left_alone(workers):
    workers.environment |= {"FAKE_CHILD_WORK": "slow", "FLEXMARL_CHILD_STUCK_S": "2"}
    workers.start()
    workers.host()
    first = workers.serving()
    time.sleep(6.0)
    assert [route.incarnation for route in engines.routes(workers.story.conn, 1)] == [first.incarnation]


def test_a_child_that_dies_again_and_again_ends_the_lease_with_a_reason(workers, tmp_path):
    workers.environment |= {"FAKE_CHILD_LIFE_S": "0.1", "FAKE_CHILD_WORDS": "no space left"}
    workers.environment["FLEXMARL_LOG_DIR"] = str(tmp_path)
    workers.start()
    workers.host()
    workers.push()
    wait_for(lambda: workers.lease()[0] == "ended", 60)
    kinds = workers.story.kinds()
    assert kinds[-1] == "lease_ended"
    assert not workers.story.handled[-1].cannot_start, "another host may do better"
    assert "code 7, saying: no space left, 5 times" in workers.story.handled[-1].reason


@pytest.mark.full
def test_a_child_that_says_it_cannot_work_ends_the_lease_at_once_with_its_words(workers):
    workers.environment["FAKE_CHILD_CANNOT"] = "no room for the model"
    workers.start()
    workers.host()
    workers.push()
    wait_for(lambda: workers.lease()[0] == "ended", 60)
    assert workers.story.kinds()[-1] == "lease_ended"
    assert workers.story.handled[-1].cannot_start
    assert workers.story.handled[-1].reason == (
        "the child cannot work: engine_failed: no room for the model; free memory"
    )


@pytest.mark.full
def test_a_child_that_the_kernel_kills_for_memory_ends_the_lease_with_that_reason(workers, tmp_path):
    """A real kill: its group of processes may have less memory than it takes once it is ready."""
    with little_memory(64 * 2**20) as group:
        workers.environment["FAKE_CHILD_CGROUP"] = str(group)
        workers.start()
        workers.host()
        workers.push()
        wait_for(lambda: workers.lease()[0] == "ended", 90)
    kinds = workers.story.kinds()
    assert kinds.count("child_lost") == MEMORY
    assert kinds[-1] == "lease_ended"
    why = workers.story.handled[-1].reason
    assert why.startswith("out_of_memory: the kernel killed it for lack of memory")
    assert f", {MEMORY} times in " in why
    assert "free memory on that host" in why


@pytest.mark.full
def test_a_child_whose_address_is_not_this_hosts_says_so_and_what_to_set(workers):
    workers.environment["FLEXMARL_CHILD_HOST"] = "203.0.113.7"
    workers.start()
    workers.host()
    workers.push()
    wait_for(lambda: workers.lease()[0] == "ended", 60)
    workers.story.decide()
    assert workers.story.handled[-1].reason.startswith("the child cannot work: address: cannot listen on 203.0.113.7: ")
    assert "set FLEXMARL_CHILD_HOST" in workers.story.handled[-1].reason


@pytest.mark.full
def test_a_node_agent_whose_port_is_in_use_says_so_and_what_to_set(workers):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        environment = {**workers.environment, "FLEXMARL_NODE_BIND": bind}
        command = [sys.executable, "-m", "workers.node"]
        agent = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    said = agent.stderr.decode().splitlines()
    assert agent.returncode == 1
    assert said[-1].startswith(f"node: cannot listen on {bind}: Address already in use; set FLEXMARL_NODE_BIND")


def test_an_engine_that_this_node_has_no_environment_for_ends_the_lease_with_the_setting(workers):
    workers.environment["FLEXMARL_VLLM_PYTHON"] = ""
    workers.story.conn.execute("""UPDATE store.run_state SET spec = '{"resources": {"engine": "vllm"}}'""")
    workers.start()
    workers.host()
    workers.push()
    wait_for(lambda: workers.lease()[0] == "ended", 60)
    workers.story.decide()
    assert "FLEXMARL_VLLM_PYTHON is not set on this node" in workers.story.handled[-1].reason
    assert workers.story.handled[-1].cannot_start


def test_a_child_that_dies_before_it_is_ready_is_told_to_the_run_the_first_time(workers, tmp_path):
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho no module named vllm >&2\nexit 3\n")
    interpreter.chmod(0o755)
    workers.environment |= {"FLEXMARL_VLLM_PYTHON": str(interpreter), "FLEXMARL_LOG_DIR": str(tmp_path)}
    workers.story.conn.execute("""UPDATE store.run_state SET spec = '{"resources": {"engine": "vllm"}}'""")
    workers.start()
    workers.host()
    workers.push()
    wait_for(lambda: "child_lost" in workers.story.kinds(), 60)
    [first, *_] = [fact for fact in workers.story.handled if fact.kind == "child_lost"]
    assert not first.ready
    assert first.reason == "the child ended with code 3, saying: no module named vllm"


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
    wait_for(lambda: [r for r in engines.routes(workers.story.conn, 1) if r.incarnation != first.incarnation], 60)
    assert time.monotonic() - began < 12 * slowness()
