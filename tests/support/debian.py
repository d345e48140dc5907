"""PostgreSQL and Redis from Debian packages, as private servers on loopback: what a production host names by URL."""

import os
import secrets
import signal
import subprocess
from pathlib import Path

import psycopg
import redis

from flexmarl.launcher.processes import Account, end, free_port, service_account, spawn, wait_until

REDIS = Path("/usr/bin/redis-server")
INITDBS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def missing() -> str:
    """Return why these servers cannot run here, or nothing."""
    absent = [name for name, there in (("postgresql", INITDBS), ("redis-server", REDIS.exists())) if not there]
    return f"not installed: {' '.join(absent)} (apt-get install {' '.join(absent)})" if absent else ""


class DebianServices:
    """One server of each, data below a folder that the service account may pass through."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.account: Account | None = service_account()
        self.password = secrets.token_urlsafe(12)
        self.ports = (free_port(), free_port())
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def database_url(self) -> str:
        return f"postgresql://tester:{self.password}@127.0.0.1:{self.ports[0]}/postgres"

    @property
    def redis_url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.ports[1]}/0"

    def __enter__(self) -> "DebianServices":
        binaries = INITDBS[-1].parent
        data, words = self._own("data"), self.folder / "words"
        words.write_text(self.password)
        words.chmod(0o644)
        initdb = [
            "initdb",
            "-D",
            str(data),
            "-U",
            "tester",
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(words),
            "-E",
            "UTF8",
        ]
        assert self._spawn([str(binaries / initdb[0]), *initdb[1:]], data).wait(60) == 0, self.log()
        options = ["-p", str(self.ports[0]), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        self._start(
            [str(binaries / "postgres"), "-D", str(data), *options, "-c", "max_locks_per_transaction=256"], data
        )
        folder = self._own("redis")
        arguments = ["--port", str(self.ports[1]), "--bind", "127.0.0.1", "--requirepass", self.password, "--save", ""]
        self._start([str(REDIS), *arguments, "--dir", str(folder)], folder)
        assert wait_until(self._answer, 60), self.log()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            end(process, [(signal.SIGINT, 5.0), (signal.SIGQUIT, 1.0)])

    def log(self) -> str:
        return (self.folder / "services.log").read_text(errors="replace")[-3000:]

    def _own(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        if self.account:
            os.chown(folder, self.account.uid, self.account.gid)
        return folder

    def _spawn(self, args: list[str], cwd: Path) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        with (self.folder / "services.log").open("ab") as log:
            return spawn(args, cwd=cwd, env=environment, output=log, account=self.account, death_signal=signal.SIGINT)

    def _start(self, args: list[str], cwd: Path) -> None:
        self.processes.append(self._spawn(args, cwd))

    def _answer(self) -> bool:
        try:
            psycopg.connect(self.database_url, connect_timeout=2).close()
            with redis.Redis.from_url(self.redis_url) as client:
                client.ping()
        except (psycopg.OperationalError, redis.RedisError):
            return False
        return True
