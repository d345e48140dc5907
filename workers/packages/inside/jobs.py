"""What a package's interpreter is started with, by a process that was confined before (`entering`)."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import sandbox


@dataclass(frozen=True)
class Job:
    """Either which environment or program to play, or of which distribution to find all."""

    memory: int
    """Bytes of address space of each process."""
    distribution: str = ""
    """What was asked for, of which a manifest is made."""
    entry: str = ""
    """`module:name` of an environment that no registry names; empty: those of registries are found."""
    adapter: str = ""
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    turns: int = 16
    reply_tokens: int = 256
    disk: int = sandbox.MOST_FILE_BYTES
    """Bytes of files that may be there at a time."""
    container: dict[str, Any] = field(default_factory=dict)
    """Of a command in a container: what `containing.ContainerJob` takes."""


def read_job(text: str) -> Job:
    """Read a job."""
    read = json.loads(text)
    return Job(**{**read, "roles": tuple(read.get("roles", ()))})


def confined(arguments: Sequence[str]) -> tuple[Job, str]:
    """Read the job of this process, which is confined already; returns how as well."""
    sandbox.hide()
    return read_job(arguments[0]), arguments[-1]


def quietly(work: Callable[[], Any]) -> Any:
    """Do foreign work whose prints go to the error stream, since the output is for answers."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        return work()
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
