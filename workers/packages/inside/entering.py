"""Confines this process, then becomes a build's own interpreter: `python -I -S boot.py enter BUILD ENTRY ...`.

Invariant: nothing of a build runs before the process is confined. Its interpreter reads what was installed as soon as
it starts (`pyvenv.cfg`, `.pth` files, `sitecustomize`), and may be another program by now; so the interpreter that
comes first is the one of which virtual environments are made, without its site packages.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import containing, sandbox
from .hosting import ends_with_parent
from .jobs import read_job

INSTALLING_MEMORY = 8 * 2**30
INSTALLING_FILE_BYTES = 8 * 2**30
INSTALLING_FILES = 4096
WRITABLE = ("venv", "tmp")
"""What pip writes of a build. The folder itself stays out of reach, so that nothing in it becomes a link elsewhere."""
WITH_LOOPBACK = ("programs", "command")
NEEDS = "rollout workers that start containers run as root, and may mount and make name spaces"


def main(arguments: Sequence[str]) -> None:
    """Confine this process and go on at an entry; says there, as the last argument, how it is confined."""
    build, entry, *given = arguments
    ends_with_parent()
    if entry == "container":
        given, how = _contained(build, given), sandbox.NAMESPACES
    else:
        how = sandbox.enter(installing(build, given) if entry == "install" else playing(build, entry, given[0]))
    python = f"{build}/venv/bin/python" if build else sys.executable
    os.execv(python, [python, "-I", str(Path(__file__).with_name("boot.py")), entry, *given, how])


def installing(build: str, given: Sequence[str]) -> sandbox.Confinement:
    """Return what pip may use: the network, and no file of the product. `given` begins with the home to be hidden."""
    writable = tuple(f"{build}/{name}" for name in WRITABLE)
    return sandbox.Confinement(
        INSTALLING_MEMORY, _own(), writable, (given[0],), True, INSTALLING_FILE_BYTES, INSTALLING_FILES
    )


def playing(build: str, entry: str, text: str) -> sandbox.Confinement:
    """Return what a job may use."""
    job = read_job(text)
    folders = {build, *_own()} - {""}
    # A folder within another one comes with it.
    visible = tuple(sorted(one for one in folders if not any(one.startswith(f"{other}/") for other in folders)))
    return sandbox.Confinement(job.memory, visible, loopback=entry in WITH_LOOPBACK, scratch=job.disk)


def _contained(build: str, given: list[str]) -> list[str]:
    """Make a room for a container; returns the arguments of who watches it, which is this process now."""
    try:
        return containing.enter(given, playing(build, "container", given[0]))
    except OSError as error:
        said = {"type": "broke", "reason": f"container: no room for it: {error.strerror}; {NEEDS}"}
        os.write(int(given[1]), json.dumps(said).encode() + b"\n")
        sys.exit(1)


def _own() -> tuple[str, str]:
    return sys.base_prefix, str(Path(__file__).resolve().parent)
