"""The container engine of this host: which one it is, and which images it has or may pull.

Podman alone, whose containers are children of whoever starts them: a daemon's would outlive the rollout worker, and
would not be in the network of their session.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.children import build_environment

ASK_S = 30.0
"""Longest time of a question to the engine."""
AUTO, NONE = "auto", "none"
LEAST = (4, 0)
"""Version that is needed: it maps the users of images without copying them."""
DRIVER = "overlay"
"""Storage in which containers read images where they lie."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NoEngine(RuntimeError):
    """This host starts no containers; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """What the operator of a host says of containers."""

    engine: str = AUTO
    """Command of the engine with options; `auto`: podman, where it is installed; `none`."""
    pulled: tuple[str, ...] = ()
    """Beginnings of the names of images that may be pulled; none: those alone are used that are there."""

    def pulls(self, name: str) -> bool:
        """Tell whether an image may be pulled: a beginning ends where a part of the name does."""
        return any(
            name == one or name.startswith(one if one.endswith("/") else (f"{one}/", f"{one}:", f"{one}@"))
            for one in self.pulled
        )


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """An engine that was found."""

    command: tuple[str, ...]
    version: str
    store: str
    """Where its images lie."""

    def __str__(self) -> str:
        return f"podman {self.version}"


def environment() -> dict[str, str]:
    """Return what an engine is started with: the way to registries, and nothing of this process's secrets."""
    return {**build_environment(), "PATH": _PATH}


def find_engine(settings: ContainerSettings) -> ContainerEngine:
    """Return the engine of this host. Raises NoEngine."""
    if settings.engine == NONE:
        raise NoEngine("FLEXMARL_CONTAINER_ENGINE is none on it; its operator may set auto")
    words = ["podman"] if settings.engine == AUTO else shlex.split(settings.engine)
    program = shutil.which(words[0], path=_PATH)
    if program is None:
        raise NoEngine(f"{words[0]} is not installed on it; its operator may install podman, such as by apt-get")
    if os.geteuid() != 0:
        raise NoEngine("its rollout workers do not run as root, which making a container's name spaces needs")
    command = (program, *words[1:])
    said = _asked([*command, "info", "--format", "json"])
    version = str(said.get("version", {}).get("Version", ""))
    numbers = [int(part) for part in version.split(".")[:2] if part.isdecimal()]
    if tuple(numbers) < LEAST:
        raise NoEngine(
            f"{words[0]} is no podman of version {LEAST[0]}.{LEAST[1]} or later ({version or 'it does not say which'})"
        )
    store = said.get("store", {})
    if store.get("graphDriverName") != DRIVER:
        raise NoEngine(
            f"its images lie in storage of the driver {store.get('graphDriverName')}, which would copy them for each "
            f"session; its operator may set driver = {DRIVER!r} in storage.conf"
        )
    return ContainerEngine(command, version, str(store["graphRoot"]))


def _asked(command: list[str]) -> Mapping[str, Any]:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, env=environment(), check=False
        )
        said = json.loads(done.stdout) if not done.returncode else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NoEngine(f"{command[0]} does not answer: {error}") from None
    if not isinstance(said, dict):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoEngine(f"{command[0]} info failed: {lines[-1] if lines else done.returncode}")
    return said


def engine_or_nothing(settings: ContainerSettings) -> str:
    """Return the engine's name and version, or nothing."""
    try:
        return str(find_engine(settings))
    except NoEngine:
        return ""
