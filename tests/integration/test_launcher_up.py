"""`manage.py up` as people use and misuse it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flexmarl.launcher.processes import wait_until
from flexmarl.launcher.state import marked
from tests.support.system import ROOT, System

pytestmark = [pytest.mark.services, pytest.mark.slow]
NAMES = {"web", "driver", "simulations", "node", "device-worker", "rollout-worker"}
STOP_LIMIT_S = 10.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a path with spaces")


@pytest.fixture(scope="module")
def running(place: Path) -> Iterator[System]:
    """One installation that the gentle tests share."""
    with System(place / "shared home") as system:
        yield system


def launch_of(system: System) -> str:
    return str(json.loads((system.home / "up.json").read_text())["launch"])


def remains(system: System, launch: str) -> list[str]:
    """Return what is still alive of an installation: its processes by launch id, its servers by their folder."""
    alive = [" ".join(process.cmdline()) for process in marked(launch)]
    for process in psutil.process_iter():
        try:
            inside = str(system.home) in process.cwd() and process.name() in {"postgres", "valkey-server"}
        except (psutil.Error, OSError):
            continue
        if inside and process.status() != psutil.STATUS_ZOMBIE:
            alive.append(process.name())
    return alive


def read(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def up_again(system: System, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "up", *options],
        env=system.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_all_processes_run_and_one_address_is_printed(running: System) -> None:
    assert wait_until(lambda: set(running.processes()) == NAMES, 60)
    assert wait_until(lambda: answers(f"{running.url}/readyz"), 60), read(f"{running.url}/readyz")
    lines = [line for line in running.log.read_text().splitlines() if "http://" in line]
    assert len(lines) == 1
    assert running.url in lines[0]


def test_the_node_registers_with_its_devices(running: System) -> None:
    def registered() -> bool:
        nodes = running.api().get("/nodes")["results"]
        return bool(nodes) and nodes[0]["state"] == "ready" and bool(nodes[0]["devices"])

    assert wait_until(registered, 60)


def test_other_commands_find_the_running_installation(running: System) -> None:
    report = json.loads(running.manage("doctor", "--json"))
    assert report["ok"], report
    assert {entry["check"] for entry in report["checks"]} >= {"database", "broker", "disk", "devices", "clock"}


def test_a_second_start_names_address_and_pid_and_harms_nothing(running: System) -> None:
    before = running.processes()
    second = up_again(running)
    assert running.process is not None
    told = f"already running at {running.url}, pid {running.process.pid}; stop it with: kill {running.process.pid}"
    assert second.stderr.strip() == told
    assert second.returncode == 3
    assert running.processes() == before
    assert answers(f"{running.url}/readyz")


def shell_blocks(document: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


def run_block(system: System, script: str, folder: Path) -> list[str]:
    """Run a block of a document as a person would, against this installation; return what it printed."""
    block = re.sub(r"^URL=\S+", f"URL={system.url}", script, flags=re.M)
    block = block.replace(".venv/bin/python manage.py", f"'{sys.executable}' '{ROOT / 'manage.py'}'")
    done = subprocess.run(
        ["bash", "-c", block],
        cwd=folder,
        env=system.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip().splitlines()


def test_the_requests_of_the_readme_work(running: System, short_tmp: Path) -> None:
    (block,) = [block for block in shell_blocks("README.md") if "URL=" in block]
    created, shown, series, stopped = run_block(running, block, short_tmp)
    assert json.loads(created)["name"] == "from curl"
    assert json.loads(created)["id"] in shown
    assert json.loads(series)["x"] == "step"
    assert json.loads(series)["series"][0]["y"], "the block waits until there is something to see"
    assert json.loads(stopped)["action"] == "stop"


def test_the_requests_of_the_quickstart_work(running: System, short_tmp: Path) -> None:
    (short_tmp / "my-run.yaml").write_text(
        re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(), re.S)[0]
    )
    (block,) = [block for block in shell_blocks("docs/quickstart.md") if "URL=" in block]
    answers_ = [
        json.loads(line) for line in run_block(running, block.replace("\n# create", "; echo\n# create"), short_tmp)
    ]
    plan, created = answers_
    assert plan["errors"] == []
    assert plan["arithmetic"]
    assert (created["name"], created["status"], created["seed"]) == ("my first run", "draft", 7)


def test_every_process_has_a_log_of_its_own(running: System) -> None:
    def lines(name: str) -> list[str]:
        whole = (running.home / "logs" / f"{name}.log").read_text().rpartition("\n")[0]
        return [line for line in whole.splitlines() if line.startswith("{")]

    for name in NAMES:
        if name != "simulations":  # which says nothing until it has one to play
            assert wait_until(lambda name=name: bool(lines(name)), 60), name  # the address is printed before all are up
        assert all("event" in json.loads(line) for line in lines(name))


def test_sigterm_ends_everything_in_time(running: System) -> None:
    """Ends the installation that the tests above share; test_starting.py starts one again."""
    launch = launch_of(running)
    assert len(remains(running, launch)) >= len(NAMES) + 2
    assert running.process is not None
    began = time.monotonic()
    running.process.terminate()
    assert running.process.wait(STOP_LIMIT_S + 5) == 0
    assert time.monotonic() - began < STOP_LIMIT_S
    assert remains(running, launch) == []
    assert not (running.home / "up.json").exists()
    text = running.log.read_text()
    assert text.count("First admin") == 1
    assert text.count("Stopped in") == 1


def test_ctrl_c_while_starting_leaves_nothing(short_tmp: Path) -> None:
    home = short_tmp / "home"
    environment = {**System(home).environment}
    process = subprocess.Popen([sys.executable, str(ROOT / "manage.py"), "up", "--port", "0"], env=environment)
    assert wait_until((home / "logs" / "prepare.log").exists, 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(STOP_LIMIT_S) == 0
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(home) in " ".join(p.info["cmdline"] or [])]


def test_a_used_port_is_told_in_one_line(short_tmp: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = up_again(System(short_tmp / "home"), "--port", str(port))
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"port {port} is used by another program; try --port " in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_foreign_home_is_told_in_one_line() -> None:
    done = up_again(System(Path("/etc/flexmarl")))
    assert done.returncode == 1
    assert "set FLEXMARL_HOME to a folder of your own" in done.stderr
