"""A whole installation on a disk that fills up: it lives, says so, and goes on by itself when there is space."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.counting import assert_accounted
from tests.support.small_disk import fill, small_disk
from tests.support.system import ROOT, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full]
DISK_MB = 900
FULL_S = 45.0
"""How long the disk stays full; in the full form several rounds of every back-off."""
BACK_S = 120.0
KEPT = ("web", "driver", "node", "device-worker")
"""Processes that have no reason to end: the database is away for them as in any outage."""


@pytest.fixture
def disk(short_tmp: Path) -> Iterator[Path]:
    with small_disk(short_tmp, DISK_MB) as place:
        yield place


def ready(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=30) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return True
        except OSError:
            pass
        time.sleep(0.5)
    return False


def page(browser: urllib.request.OpenerDirector, url: str) -> str:
    try:
        return str(browser.open(url, timeout=30).read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def doctor(system: System) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "manage.py"), "doctor", "--json"]
    done = subprocess.run(command, env=system.environment, capture_output=True, text=True, check=False, timeout=120)
    return json.loads(done.stdout)


def test_a_full_disk_ends_nothing_is_said_is_over_when_there_is_space_and_hinders_no_stop(disk: Path) -> None:
    system = System(disk / "home", options=("--demo",))
    system.start()
    try:
        api, browser = system.api(), system.signed_in()
        assert eventually(lambda: bool(api.get("/runs")["results"]), 60)
        run = api.get("/runs")["results"][0]["id"]
        reached = api.wait(run, lambda row: row["step"] >= 2, 180)["step"]
        before = system.processes()
        filler = fill(disk)

        assert eventually(lambda: [n["code"] for n in ready(system.url)[1]["notices"]] == ["disk_full"], 60)
        # Something to log, to write down and to start again; and a database that finds no space, as after its panic.
        os.kill(before["rollout-worker"], signal.SIGKILL)
        os.kill(int((system.home / "postgres/data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        until = time.monotonic() + FULL_S
        while time.monotonic() < until:
            assert system.process is not None
            assert system.process.poll() is None, system.tail()
            time.sleep(1.0)
        text = ready(system.url)[1]["notices"][0]["text"]
        assert re.search(r"The disk of the data folder is full: .* free\. The data folder takes: .*database \d", text)
        assert "Free some space" in text
        assert str(disk) not in text
        shown = page(browser, f"{system.url}/")
        assert "The disk is full" in shown
        assert "Free some space" in shown
        found = {entry["check"]: entry for entry in doctor(system)["checks"] if entry["level"] == "error"}
        # Of which of these it is the last bytes decide.
        assert re.search("which holds|takes no file|No space left on device", found["disk"]["text"])

        filler.unlink()
        assert eventually(lambda: ready(system.url)[1]["status"] == "ok", BACK_S), system.tail()
        later = api.wait(run, lambda row: row["step"] >= reached + 5 or row["status"] != "running", BACK_S)
        assert later["status"] in {"running", "stopping", "completed"}, later["reason_text"]
        assert later["step"] >= reached + 5 or later["status"] == "completed"
        after = system.processes()
        assert {name: after[name] for name in KEPT} == {name: before[name] for name in KEPT}
        assert after["rollout-worker"] != before["rollout-worker"]
        if later["status"] == "running":
            api.act(run, "stop")
        ended = api.finish(run, BACK_S)
        assert ended["status"] in {"stopped", "completed"}, ended["reason_text"]
        with psycopg.connect(system.database_url) as conn:
            counted = assert_accounted(conn, ended["no"])
        assert counted.in_training == ended["progress"]["episodes_proposed"]

        fill(disk)
        assert eventually(lambda: [n["code"] for n in ready(system.url)[1]["notices"]] == ["disk_full"], 60)
        began = time.monotonic()
        assert system.process is not None
        system.process.terminate()
        assert system.process.wait(20) == 0, "stopping is orderly while the disk is full"
        assert time.monotonic() - began < 15
        assert not (system.home / "up.json").exists()
    finally:
        system.stop()
