"""The environment's settings, checked before anything starts.

Each part of the platform reads its own settings; each has a module that does nothing but read them and says in one line
what is wrong. Invariant: an installation whose processes would refuse to start is not begun at all.
"""

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from flexmarl.launcher.errors import LaunchError

READERS = ("flexmarl.controlplane.settings.check", "workers.settings")
"""Modules that read the settings of web and driver, and of node agent and workers."""
OWN = frozenset({"FLEXMARL_HOME", "FLEXMARL_NODE", "FLEXMARL_ADMIN_PASSWORD", "FLEXMARL_LAUNCH"})
"""Names for which any text will do."""
OTHERS = frozenset({"DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE"})
READ_S = 120.0


def chosen_by_person(environment: Mapping[str, str]) -> list[str]:
    """Return the settings that somebody gave this process; without any there is nothing that can be wrong."""
    return sorted(name for name in environment if name in OTHERS or (name.startswith("FLEXMARL_") and name not in OWN))


def check(environment: Mapping[str, str], root: Path) -> None:
    """Let every part read its settings. Raises LaunchError with what they say."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=root,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for module in READERS
    ]
    said: list[str] = []
    try:
        for process in running:
            _, text = process.communicate(timeout=READ_S)
            lines = text.decode(errors="replace").strip().splitlines()
            if process.returncode != 0:
                said.append(lines[-1] if lines else f"{process.args!r} exited with {process.returncode}")
    except subprocess.TimeoutExpired:
        raise LaunchError(f"reading the settings took over {READ_S:.0f} s") from None
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
    if said:
        raise LaunchError("; ".join(dict.fromkeys(said)))
