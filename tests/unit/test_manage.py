"""`manage.py` prints the help of every command, also where nothing is running."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def manage(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    names = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")
    environment = {name: value for name, value in os.environ.items() if name not in names} | {
        "FLEXMARL_HOME": str(home)
    }
    command = [sys.executable, str(ROOT / "manage.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


@pytest.mark.parametrize("command", ["serve", "create_token"])
def test_help_needs_no_installation(tmp_path: Path, command: str) -> None:
    shown = manage(tmp_path, command, "--help")
    assert (shown.returncode, f"manage.py {command}" in shown.stdout) == (0, True), shown.stderr[-500:]


def test_a_command_that_needs_a_database_is_refused_without_one(tmp_path: Path) -> None:
    refused = manage(tmp_path, "create_token", "--name", "x")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"no installation is running in {tmp_path}")
