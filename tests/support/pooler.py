"""PgBouncer of the distribution in front of a server of the tests."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from flexmarl.launcher.processes import free_port, service_account, wait_until

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextmanager
def pooled(url: str, mode: str, folder: Path) -> Iterator[str]:
    """Run PgBouncer with a pool mode and its defaults; yields the address of the same database through it.

    `folder` must be one that the service account may pass through. Skipped where the program is missing.
    """
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed")
    server, port = urlsplit(url), free_port()
    own = folder / f"pgbouncer-{mode}"
    own.mkdir()
    users = own / "users"
    users.write_text(f'"{server.username}" "{server.password}"\n')
    settings = own / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={server.hostname} port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {users}\n"
        f"pool_mode = {mode}\ndefault_pool_size = 60\nlogfile = {own / 'log'}\n"
    )
    account = service_account()
    for path in (own, users, settings):
        if account:
            os.chown(path, account.uid, account.gid)
    as_whom = {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}
    process = subprocess.Popen([PROGRAM, "-q", str(settings)], stderr=subprocess.DEVNULL, cwd="/", **as_whom)
    through = urlunsplit(server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:{port}"))
    try:
        assert wait_until(lambda: _answers(through), 60), (own / "log").read_text()
        yield through
    finally:
        process.kill()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
