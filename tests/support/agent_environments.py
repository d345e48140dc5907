"""Environments of their own for foreign agent programs, as requirements/programs pins them."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.system import ROOT


@dataclass(frozen=True)
class Installed:
    """The interpreter that has a framework, and where its commands are."""

    python: str
    commands: str


def installed(name: str, folder: Path) -> Installed:
    wanted, python = ROOT / "requirements/programs" / name, sys.executable
    folder.mkdir()
    if wanted.suffix == ".json":
        if (npm := shutil.which("npm")) is None:
            pytest.skip("npm is not installed")
        shutil.copy(wanted, folder / "package.json")
        command = [npm, "install", "--prefix", folder, "--no-audit", "--no-fund", "--silent"]
    else:
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        command = [python, "-m", "pip", "--python", folder, "install", "-q", "--no-compile", "--no-deps", "-r", wanted]
        python = str(folder / "bin/python")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{wanted.stem} cannot be installed: {done.stderr.strip()[-200:]}")
    return Installed(python, str(folder / "node_modules/.bin"))
