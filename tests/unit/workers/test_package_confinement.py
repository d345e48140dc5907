"""What a package brings runs confined from its first line on, while it is built and when it plays; what it leaves in
its build leads nowhere else."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.package_manifests import LockedDistribution, digest_of
from tests.support.builds import went_on
from tests.support.package_files import NAME, wheel
from workers.packages import protocol_kit
from workers.packages.building import BuildOrder
from workers.packages.folders import entered
from workers.packages.running import run_build
from workers.rollout.packages import start_packaged

pytestmark = pytest.mark.slow

ENTRY = f"{NAME}:Mischief"
BACKEND = """
import os, shutil, sys
from pathlib import Path

def build_wheel(target, settings=None, metadata=None):
    build, outside = Path(sys.prefix).parent, OUTSIDE
    python = build / "venv" / "bin" / "python"
    real = python.resolve()
    python.unlink()
    python.write_text(f"#!/bin/sh\\necho ran >> {outside}/ran\\nexec {real} \\"$@\\"\\n")
    python.chmod(0o755)
    for path in (build / "manifest.json", build / "lock.txt"):
        try:
            path.symlink_to(f"{outside}/linked")
        except OSError:
            continue
    for moved in (build / "venv", build / "tmp"):
        try:
            moved.rename(build / "elsewhere")
            moved.symlink_to(outside)
        except OSError:
            continue
    shutil.copy(WHEEL, target)
    return WHEEL
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that every user of the host may write to."""
    folder = tmp_path / "outside"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def early(outside: Path) -> dict[str, str]:
    """Return a file that an interpreter runs when it starts, before anything that it was asked to."""
    note = f"open('{outside}/ran', 'a').write('ran')"
    return {"early.pth": f"import os; exec(\"try:\\n {note}\\nexcept OSError:\\n os.environ['ASKED'] = 'early'\")\n"}


def source(folder: Path, outside: Path) -> Path:
    """Make a source distribution that turns on its build while it is built."""
    name, body = wheel()
    backend = BACKEND.replace("OUTSIDE", f"Path({str(outside)!r})").replace("WHEEL", repr(name))
    made = folder / f"{NAME}-1.0.tar.gz"
    files = {"backend.py": backend.encode(), "pyproject.toml": PROJECT.encode(), name: body, "PKG-INFO": b""}
    with tarfile.open(made, "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{NAME}-1.0/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return made


async def built(home: Path, file: Path) -> dict[str, Any]:
    made = await run_build(home, BuildOrder("mischief-games", "", str(file), ENTRY), home / "log", went_on)
    if "confined by namespaces" not in (home / "log").read_text():
        pytest.skip("this kernel allows no name spaces")
    return made


@pytest.mark.asyncio
async def test_what_an_interpreter_runs_first_runs_confined(tmp_path: Path, outside: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    name, body = wheel(beside=early(outside))
    (tmp_path / name).write_bytes(body)
    made = await built(home, tmp_path / name)
    assert made["manifest"]["environments"], "what runs first changes nothing else"
    job = {"memory": 2**29, "entry": ENTRY, "adapter": "trl"}
    host = start_packaged(home / "packages" / made["digest"], "play", job)
    await host.fork()
    host.end()
    assert not list(outside.iterdir())


@pytest.mark.asyncio
async def test_a_build_that_turns_on_its_own_folder_reaches_nothing_beside_it(tmp_path: Path, outside: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    await built(home, source(tmp_path, outside))
    assert not list(outside.iterdir())


def test_the_protocol_is_not_written_through_links(tmp_path: Path, outside: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "flexmarl").symlink_to(outside)
    (site / "workers").mkdir()
    (site / "workers" / "__init__.py").symlink_to(outside / "written")
    protocol_kit.copy_into(site)
    assert not list(outside.iterdir())
    assert (site / "flexmarl" / "contracts").is_dir()
    assert not (site / "workers" / "__init__.py").is_symlink()


def test_a_build_is_named_by_what_was_asked_for_too() -> None:
    """What runs while a build is made can say that it installed what another build has, but not that it is that one."""
    lock = (LockedDistribution(name="textarena", version="0.7.4", sha256="a" * 64),)
    assert digest_of(lock, "", "textarena==0.7.4") == digest_of(lock, "", "textarena==0.7.4")
    assert digest_of(lock, "", "textarena==0.7.4") != digest_of(lock, "", "b" * 64)


def test_the_first_interpreter_knows_nothing_of_the_build(tmp_path: Path) -> None:
    command = entered(tmp_path, "manifest", "{}")
    assert not command[0].startswith(str(tmp_path))
    assert command[1:3] == ["-I", "-S"]


LINKS = """
import os
from pathlib import Path
from workers.packages.inside import sandbox

links = [path for path in Path("/usr/bin").iterdir() if path.is_symlink() and path.exists()]
through = [path for path in links if os.readlink(path).startswith("/etc/alternatives/")]
sandbox._apart(sandbox.Confinement(memory=2**30, visible=()))
print(len(through), *(path.name for path in through if not path.exists()))
"""


def test_programs_that_the_system_chose_among_alternatives_are_there() -> None:
    """Of Debian, `awk` is one: a shell script finds it as on the host."""
    done = subprocess.run([sys.executable, "-c", LINKS], capture_output=True, text=True, check=False)
    if "PermissionError" in done.stderr:
        pytest.skip("the kernel allows no name spaces here")
    found, *missing = done.stdout.split()
    if not int(found):
        pytest.skip("this system has no alternatives")
    assert not missing
