"""Starts that cannot be, that were cut, and that meet another: each says in one line what is wrong and what to do."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexmarl.launcher.processes import wait_until
from tests.support.system import OF_THE_SESSION, ROOT, System

pytestmark = [pytest.mark.services, pytest.mark.slow]


def up(system: System, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "up", "--port", "0"],
        env={**system.environment, **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


WRONG = {
    "FLEXMARL_CPU_SHARES": ("many", "a whole number from 1"),
    "FLEXMARL_NODE_BIND": ("7100", "host:port, such as 127.0.0.1:0"),
    "FLEXMARL_KEEP_SAMPLES_DAYS": ("soon", "a whole number; use one from 0"),
    "FLEXMARL_LOG_LEVEL": ("loud", "use one of DEBUG, INFO"),
    "FLEXMARL_DEBUG": ("maybe", "use 1 or 0"),
    "REDIS_URL": ("localhost:6379", "redis://:password@host:6379/0"),
    "DJANGO_SETTINGS_MODULE": ("nowhere", "use flexmarl.controlplane.settings.development"),
}


WRONG_TOGETHER = (
    ("FLEXMARL_CPU_SHARES", "FLEXMARL_KEEP_SAMPLES_DAYS"),
    ("FLEXMARL_NODE_BIND", "FLEXMARL_DEBUG"),
    ("FLEXMARL_LOG_LEVEL",),
    ("REDIS_URL",),
    ("DJANGO_SETTINGS_MODULE",),
)
"""One of the workers' and one of the web process's are told in one line."""


@pytest.mark.parametrize("names", WRONG_TOGETHER, ids=",".join)
def test_wrong_settings_are_refused_before_anything_starts(short_tmp: Path, names: tuple[str, ...]) -> None:
    system = System(short_tmp / "home")
    done = up(system, **{name: WRONG[name][0] for name in names})
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for name in names:
        assert name in done.stderr
        assert WRONG[name][1] in done.stderr
    assert done.stdout == ""
    assert not (system.home / "postgres").exists()
    assert not (system.home / "secrets.json").exists()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One home whose starts follow each other: each test ends the one it made."""
    folder = tmp_path_factory.mktemp("starts")
    folder.chmod(0o711)
    system = System(folder / "home")
    system.environment.pop("FLEXMARL_ADMIN_PASSWORD")
    yield system
    system.stop()


def killed(system: System) -> None:
    assert system.process is not None
    system.process.kill()
    system.process.wait()


def test_a_start_that_is_killed_before_its_address_has_said_the_admins_password(system: System) -> None:
    system.process = system.spawn()
    log = system.home / "logs" / "web.log"
    assert wait_until(log.exists, 120), "prepared, and the pages do not answer yet"
    killed(system)
    said = system.log.read_text()
    assert re.search(r"First admin: admin   password: \S{12,}", said), "said as soon as it is made"


def test_a_start_that_meets_another_one_names_the_right_process(system: System) -> None:
    """While the other one starts, over a lock that names a dead process, and when it is up."""
    system.process = process = system.spawn()
    lock = system.home / "run" / "up.lock"
    assert wait_until(lambda: str(process.pid) in lock.read_text(), 60)
    told = f"pid {process.pid}; stop it with: kill {process.pid}"
    for _ in range(2):
        second = up(system)
        assert second.returncode == 3
        assert told in second.stderr
        system.until_ready()


def test_an_admin_who_never_signed_in_is_led_to_the_password(system: System) -> None:
    assert wait_until(lambda: "http://" in system.log.read_text(), 60)
    text = system.log.read_text()
    told = re.search(r"No sign-in as admin yet; .*: (FLEXMARL_HOME=.* manage.py changepassword admin)", text)
    assert told, text
    shell = {name: value for name, value in os.environ.items() if name not in {*OF_THE_SESSION, "FLEXMARL_HOME"}}
    done = subprocess.run(
        told[1], shell=True, cwd=ROOT, env=shell, input="Another-one-4711\n" * 2, text=True, capture_output=True,
        check=False, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Password changed successfully for user 'admin'" in done.stdout


def test_what_a_power_loss_leaves_of_secrets_is_refused_and_of_the_rest_is_borne(system: System) -> None:
    """Over a home whose installation was stopped in order, which says the admin's password no second time."""
    assert system.process is not None
    system.process.terminate()
    assert system.process.wait(60) == 0
    secrets = system.home / "secrets.json"
    kept = secrets.read_bytes()
    secrets.write_bytes(b"\0" * len(kept))
    refused = up(system)
    assert refused.returncode == 1
    assert f"{secrets} holds zeros only; nothing was changed. Restore it from a backup" in refused.stderr
    assert secrets.read_bytes() == b"\0" * len(kept)

    secrets.write_bytes(kept)
    (system.home / "up.json").write_bytes(b"")
    for lost in ("run/environment.json", "run/valkey.pid", "run/up.lock"):
        (system.home / lost).write_bytes(bytes(64))
    folder = system.home / "valkey" / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    (folder / "appendonly.aof.1.incr.aof").write_bytes(b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n" + b"\0" * 4096)
    with system:
        assert system.manage("doctor", "--json")
    assert system.log.read_text().count("First admin") == 1
