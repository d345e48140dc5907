"""The single processes, each started alone against PostgreSQL and Redis from Debian packages, train a team together."""

import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from flexmarl.launcher.processes import end, free_port, spawn, wait_until
from tests.support.debian import DebianServices, missing
from tests.support.system import ROOT, Api

pytestmark = [
    pytest.mark.external,
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
STEPS = 3
SPEC = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    "evaluation": {"every_steps": 100, "tasks": 8},
    "budget": {"train_steps": STEPS, "target": None},
}


def environment_of(services: DebianServices, home: Path) -> dict[str, str]:
    """Return the settings as the operations guide gives them to a production host."""
    return {
        **os.environ,
        "DATABASE_URL": services.database_url,
        "REDIS_URL": services.redis_url,
        "FLEXMARL_HOME": str(home),
        "FLEXMARL_NODE": "external-test",
        "FLEXMARL_CLUSTER_KEY": "cluster-key-of-this-test",
        "FLEXMARL_SECRET_KEY": "secret-key-of-this-test-that-is-long-enough-to-pass",
        "FLEXMARL_ALLOWED_HOSTS": "127.0.0.1",
        "FLEXMARL_ADMIN_PASSWORD": "password-of-this-test",
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def services() -> Iterator[DebianServices]:
    with tempfile.TemporaryDirectory(prefix="flexmarl-external-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with DebianServices(folder) as running:
            yield running


@pytest.fixture(scope="module")
def environment(services: DebianServices) -> dict[str, str]:
    home = services.folder / "home"
    home.mkdir()
    return environment_of(services, home)


def manage(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def api(services: DebianServices, environment: dict[str, str]) -> Iterator[Api]:
    """Start every process by itself, as unit files would."""
    manage(environment, "prepare")
    port = free_port()
    entry, module = [sys.executable, str(ROOT / "manage.py")], [sys.executable, "-m"]
    commands = [
        [*entry, "serve", "--port", str(port)],
        [*entry, "drive"],
        [*entry, "simulations"],
        [*module, "workers.node"],
        [*module, "workers.run", "--role", "device"],
        [*module, "workers.run", "--role", "rollout"],
    ]
    with ExitStack() as stack, (services.folder / "processes.log").open("ab") as log:
        for command in commands:
            process = spawn(command, cwd=services.folder, env=environment, output=log)
            stack.callback(end, process, [(signal.SIGTERM, 9.0)])
        url = f"http://127.0.0.1:{port}"
        assert wait_until(lambda: answers(f"{url}/readyz"), 60), log_of(services)
        token = manage(environment, "create_token", "--name", "external").split()[-1]
        yield Api(url, token)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


def log_of(services: DebianServices) -> str:
    return (services.folder / "processes.log").read_text(errors="replace")[-5000:]


def test_the_servers_are_those_of_the_packages(services: DebianServices) -> None:
    with psycopg.connect(services.database_url) as connection:
        row = connection.execute("SELECT version()").fetchone()
    assert row is not None
    assert "Debian" in row[0] or "Ubuntu" in row[0]


def test_a_team_trains(api: Api, services: DebianServices) -> None:
    assert wait_until(lambda: len(api.get("/devices")["results"]) >= 2, 60), log_of(services)
    run = api.create_run(name="external", spec=SPEC)
    done = api.finish(run["id"], 120)
    assert (done["status"], done["step"]) == ("completed", STEPS), log_of(services)
    report = api.consistency(run["id"])
    assert report["ok"], report


def test_doctor_finds_no_error(api: Api, environment: dict[str, str]) -> None:
    assert "ERROR" not in manage(environment, "doctor")


def test_production_settings_name_what_is_missing(environment: dict[str, str]) -> None:
    production = {**environment, "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.production"}
    assert "no issues" in manage(production, "check")
    del production["FLEXMARL_CLUSTER_KEY"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "check"], env=production, capture_output=True, text=True, check=False
    )
    assert "FLEXMARL_CLUSTER_KEY must be set in production" in done.stderr
