"""A primary PostgreSQL and its replica, which takes its place when the primary is killed."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg

from flexmarl.launcher.binaries import postgres_install
from flexmarl.launcher.home import SECRETS, Home
from flexmarl.launcher.postgres import DATABASE, USER, EmbeddedPostgres
from flexmarl.launcher.processes import wait_until

SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB", "wal_receiver_status_interval": "1s"}
"""What is acknowledged must survive a server's process, not its machine."""


class ReplicatedPostgres:
    """Two servers; `url` names both and asks for the one that may be written to."""

    def __init__(self, folder: Path) -> None:
        self.primary = EmbeddedPostgres(Home(folder / "first"), settings=SETTINGS)
        self.replica = EmbeddedPostgres(Home(folder / "second"), settings=SETTINGS)

    @property
    def url(self) -> str:
        password = self.primary.home.secrets()["postgres_password"]
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.replica))
        return f"postgresql://{USER}:{password}@{hosts}/{DATABASE}?target_session_attrs=read-write"

    def start(self) -> None:
        """Start the primary, copy it, let the copy follow, and acknowledge nothing that the copy has not."""
        self.primary.start()
        self.replica.home.prepare()
        shutil.copy(self.primary.home.root / SECRETS, self.replica.home.root / SECRETS)
        self.replica.own_folder(self.replica.folder)
        self._copy()
        self.replica.start()
        with psycopg.connect(self.primary.url, autocommit=True) as conn:
            following = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
            assert wait_until(lambda: conn.execute(following).fetchone() == (1,), 60)
            conn.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            conn.execute("SELECT pg_reload_conf()")
            synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            assert wait_until(lambda: conn.execute(synchronous).fetchone() == (1,), 60)

    def switch(self) -> None:
        """Kill the primary with all its sessions, as a machine that loses power, and let the replica take its place."""
        assert self.primary.process is not None
        server = psutil.Process(self.primary.process.pid)
        server.suspend()  # no session is told anything
        for process in [*server.children(recursive=True), server]:
            process.send_signal(signal.SIGKILL)
        self.primary.process.wait(60)
        with psycopg.connect(self.replica.url, autocommit=True) as conn:
            assert conn.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    def stop(self) -> None:
        for server in (self.replica, self.primary):
            server.stop()

    def _copy(self) -> None:
        account, target = self.replica.account, self.replica.data
        as_whom = {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}
        command = [str(postgres_install(account) / "bin" / "pg_basebackup"), "-D", str(target), "-R", "-X", "stream"]
        command += ["--checkpoint=fast", "--no-sync", "-d", self.primary.url_of("postgres")]
        subprocess.run(command, check=True, cwd="/", env={"PATH": os.defpath}, **as_whom)


@contextmanager
def replicated(folder: Path) -> Iterator[ReplicatedPostgres]:
    """Run both servers below a folder that the service account may pass through."""
    servers = ReplicatedPostgres(folder)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
