"""Where builds lie on a host: below `HOME/packages`, one folder for each, named by the digest of what is installed.

Invariant: a folder under its digest is whole; one that is being made has another name.
"""

import shutil
import sys
import uuid
from pathlib import Path

FOLDER = "packages"
MAKING = "making-"
MOST_SCRIPT = 2**16
"""Bytes of a program that an installer wrote; others are not its own."""
SEEN = 0o755
"""Builds are read by users that confined processes become."""


def root_of(home: Path) -> Path:
    """Return the folder of all builds of a host."""
    root = home / FOLDER
    root.mkdir(parents=True, exist_ok=True)
    return root


def build_of(home: Path, digest: str) -> Path | None:
    """Return a build, None where this host lacks it."""
    folder = home / FOLDER / digest
    return folder if python_of(folder).exists() else None


def python_of(folder: Path) -> Path:
    """Return the interpreter of a build."""
    return folder / "venv" / "bin" / "python"


def new_folder(home: Path) -> Path:
    """Make a folder to build in."""
    folder = root_of(home) / f"{MAKING}{uuid.uuid4().hex}"
    folder.mkdir(mode=SEEN)
    (folder / "tmp").mkdir(mode=SEEN)
    return folder


def keep(home: Path, folder: Path, digest: str) -> Path:
    """Give a finished build its name; one that is there already stays, for it is the same."""
    target = root_of(home) / digest
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    _rename_in_scripts(folder, target)
    try:
        folder.rename(target)
    except OSError:
        if build_of(home, digest) is None:
            raise
        shutil.rmtree(folder, ignore_errors=True)
    return target


def _rename_in_scripts(folder: Path, target: Path) -> None:
    """Have the programs of a build name the interpreter where it will lie: installers write where it lies now."""
    before, after = bytes(folder.absolute()), bytes(target.absolute())
    scripts = folder / "venv" / "bin"
    if scripts.is_symlink():
        return
    for script in scripts.iterdir():
        if script.is_symlink() or not script.is_file() or script.stat().st_size > MOST_SCRIPT:
            continue
        body = script.read_bytes()
        if body.startswith(b"#!") and before in body:
            script.write_bytes(body.replace(before, after))


def boot_of() -> Path:
    """Return the program that a package's interpreter runs."""
    return Path(__file__).resolve().parent / "inside" / "boot.py"


def entered(folder: Path | None, entry: str, *arguments: str) -> list[str]:
    """Return the command that goes on at an entry of `inside` in a build's own interpreter, or in that of which virtual
    environments are made; it is confined before that interpreter starts."""
    build = "" if folder is None else str(folder.absolute())
    return [base_python(), "-I", "-S", str(boot_of()), "enter", build, entry, *arguments]


def base_python() -> str:
    """Return the interpreter of which virtual environments are made: not this product's own one."""
    found: str = getattr(sys, "_base_executable", sys.executable)
    return found
