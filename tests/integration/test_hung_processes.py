"""Processes of a real `up` that hang: seen in readiness and doctor, replaced by the supervisor, within told bounds.

Each is stopped while a run trains: nothing of the run is lost, and nothing is counted twice.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import psutil
import psycopg
import pytest

from flexmarl.launcher.processes import wait_until
from tests.support.chaos import patient
from tests.support.counting import assert_accounted
from tests.support.system import ROOT, ApiError, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]
REPLACED_S = 15.0
"""The promise is 6 s of silence and the next round; the rest is for a machine whose cores others hold."""
BACK_S = 60.0
NAMES = ("driver", "web", "rollout-worker", "node", "simulations", "device-worker")


@pytest.fixture(scope="module")
def running(installations: Callable[[int], System]) -> System:
    system = installations(0)
    assert wait_until(lambda: set(system.processes()) == set(NAMES), 60)
    assert wait_until(lambda: ready(system)[1].get("status") == "ok", BACK_S), ready(system)
    assert wait_until(lambda: beating(system) == len(NAMES), BACK_S), "a process that still starts may take a minute"
    time.sleep(1)  # a beat and a look of the supervisor
    return system


def ready(system: System) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"{system.url}/readyz", timeout=5) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    except OSError:
        return 0, {}


def beating(system: System) -> int:
    """Count the processes that have a heartbeat."""
    with psycopg.connect(system.database_url) as conn:
        row = conn.execute("SELECT count(*) FROM store.process_heartbeat").fetchone()
    assert row is not None
    return int(row[0])


def doctor(system: System) -> str:
    command = [sys.executable, str(ROOT / "manage.py"), "doctor", "--json"]
    done = subprocess.run(command, env=system.environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    return done.stdout


def told(system: System, event: str) -> list[str]:
    lines = (system.home / "logs" / "supervisor.log").read_text().splitlines()
    return [line["process"] for line in map(json.loads, lines) if line["event"] == event]


@pytest.mark.full
def test_each_process_that_is_stopped_is_replaced_and_costs_a_run_nothing(running: System) -> None:
    api = running.api()
    endless = {"budget": {"train_steps": 1_000_000, "target": None}}
    run = api.create_run(name="beside stopped processes", template="reference_game", spec=endless)
    for names in (NAMES[:3], NAMES[3:]):
        step = api.wait(run["id"], lambda found: found["step"] >= 2, 300)["step"]
        stop_until_replaced(running, names)
        patient(lambda step=step: api.wait(run["id"], lambda found: found["step"] >= step + 2, 300))
    api.act(run["id"], "stop")
    ended = api.finish(run["id"], 300)
    assert ended["status"] == "stopped", ended["reason_text"]
    with psycopg.connect(running.database_url) as conn:
        counted = assert_accounted(conn, run["no"])
    assert counted.in_training == ended["progress"]["episodes_proposed"]


def stop_until_replaced(system: System, names: tuple[str, ...]) -> None:
    """Stop some processes at once."""
    before = {name: system.processes()[name] for name in names}
    for pid in before.values():
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        for name, pid in before.items():
            replaced = wait_until(lambda name=name, pid=pid: system.processes().get(name, pid) != pid, REPLACED_S + 30)
            took = time.monotonic() - began
            assert replaced, f"{name} is still there"
            assert took < REPLACED_S, f"{name} after {took:.1f} s"
        assert set(told(system, "hung")[-len(names) :]) == set(names)
    finally:
        for pid in before.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: ready(system)[1].get("status") == "ok", BACK_S), (names, ready(system))


def test_a_stopped_driver_is_seen_in_readiness_and_doctor(running: System) -> None:
    """Its successor takes its time here: the supervisor is stopped, as if there were none."""
    assert running.process is not None
    driver = running.processes()["driver"]
    running.process.send_signal(signal.SIGSTOP)
    os.kill(driver, signal.SIGSTOP)
    try:
        assert wait_until(lambda: ready(running)[0] == 503, 60), ready(running)
        _, body = ready(running)
        assert body["checks"]["driver"] == "failed"
        assert [process["process"] for process in body["processes"]] == ["driver"]
        report = doctor(running)
        (finding,) = [entry for entry in json.loads(report)["checks"] if entry["level"] == "error"]
        assert finding["check"] == "processes"
        assert finding["text"].startswith("driver on ")
        assert "no heartbeat for" in finding["text"]
    finally:
        os.kill(driver, signal.SIGCONT)
        running.process.send_signal(signal.SIGCONT)
    assert wait_until(lambda: ready(running)[1].get("status") == "ok", BACK_S), ready(running)


def valkey_of(system: System) -> psutil.Process:
    assert system.process is not None
    (found,) = [p for p in psutil.Process(system.process.pid).children() if p.name().startswith("valkey")]
    return found


def seconds_of(call: object, *arguments: object, **named: object) -> float:
    began = time.monotonic()
    with contextlib.suppress(ApiError):
        call(*arguments, **named)
    return time.monotonic() - began


def test_a_stopped_broker_holds_up_no_request(running: System) -> None:
    """The supervisor is stopped meanwhile, so that nobody replaces the broker."""
    assert running.process is not None
    api = running.api()
    api.create_run(start=False, name="first", template="reference_game")  # what the process loads for it is no wait
    broker = valkey_of(running)
    running.process.send_signal(signal.SIGSTOP)
    broker.suspend()
    try:
        longest = {
            "readyz": seconds_of(ready, running),
            "create": seconds_of(api.create_run, start=False, name="hung broker", template="reference_game"),
            "list": seconds_of(api.get, "/runs"),
        }
        run = api.create_run(start=False, name="another", template="reference_game")
        longest["verb"] = seconds_of(api.act, run["id"], "start")
        longest["kill"] = seconds_of(api.act, run["id"], "kill")
        longest["ready again"] = seconds_of(ready, running)
        assert ready(running)[1]["checks"]["broker"] == "failed"
        assert max(longest.values()) < 3.0, longest
    finally:
        broker.resume()
        running.process.send_signal(signal.SIGCONT)
    assert wait_until(lambda: ready(running)[1].get("status") == "ok", BACK_S), ready(running)


def test_a_stopped_broker_is_replaced(running: System) -> None:
    broker = valkey_of(running)
    broker.suspend()
    began = time.monotonic()
    assert wait_until(lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE, REPLACED_S + 30)
    assert time.monotonic() - began < REPLACED_S
    assert wait_until(lambda: ready(running)[1].get("status") == "ok", BACK_S), ready(running)
