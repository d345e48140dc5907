"""A real web process over a database of its own: `manage.py serve`, without driver, node or workers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from flexmarl.launcher.processes import end, free_port, spawn, wait_until
from tests.support.system import ROOT

ADMIN_PASSWORD = "password-of-this-test"


def environment_of(database_url: str, redis_url: str, home: Path, **more: str) -> dict[str, str]:
    """Return the settings of a web process."""
    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "FLEXMARL_HOME": str(home),
        "FLEXMARL_SECRET_KEY": "secret-key-of-this-test-that-is-long-enough-to-pass",
        "FLEXMARL_CLUSTER_KEY": "cluster-key-of-this-test",
        "FLEXMARL_ADMIN_PASSWORD": ADMIN_PASSWORD,
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
        **more,
    }


def manage(environment: dict[str, str], *arguments: str) -> str:
    """Run a management command and return what it prints."""
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def served(environment: dict[str, str], log: Path, *command: str) -> Iterator[str]:
    """Serve until the block ends, by `manage.py serve` unless another command is named. Yields the address."""
    port = str(free_port())
    words = [*command, "--port", port] if command else [str(ROOT / "manage.py"), "serve", "--port", port]
    with log.open("ab") as output:
        process = spawn([sys.executable, *words], cwd=ROOT, env=environment, output=output)
    try:
        url = f"http://127.0.0.1:{port}"
        assert wait_until(lambda: _answers(f"{url}/readyz"), 60), log.read_text(errors="replace")[-3000:]
        yield url
    finally:
        end(process, [(signal.SIGTERM, 9.0)])


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False
