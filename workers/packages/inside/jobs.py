"""What a package's interpreter is started with, and how it is confined before foreign code is imported."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import sandbox
from .hosting import ends_with_parent


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


def confined(text: str, *, loopback: bool = False) -> tuple[Job, str]:
    """Read a job and confine this process; returns how it is confined. `loopback`: it may speak to itself."""
    ends_with_parent()
    read = json.loads(text)
    job = Job(**{**read, "roles": tuple(read.get("roles", ()))})
    folders = {sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parent)}
    # A folder within another one comes with it.
    visible = tuple(sorted(one for one in folders if not any(one.startswith(f"{other}/") for other in folders)))
    how = sandbox.enter(sandbox.Confinement(job.memory, visible, loopback=loopback, scratch=job.disk))
    return job, how


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
