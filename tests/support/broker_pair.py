"""Two brokers behind one address: a master, its replica, a sentinel that promotes it, and HAProxy that finds it."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from flexmarl.launcher.binaries import valkey_binary
from flexmarl.launcher.home import SECRETS, Home
from flexmarl.launcher.processes import free_port, service_account, wait_until
from flexmarl.launcher.valkey import EmbeddedValkey
from tests.support.system import ROOT

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


class BrokerPair:
    """`url` leads to whichever of the two is the master."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.master = EmbeddedValkey(Home(folder / "first"))
        self.replica = EmbeddedValkey(Home(folder / "second"))
        self.port = 0
        self._others: list[subprocess.Popen[bytes]] = []

    @property
    def password(self) -> str:
        return self.master.home.secrets()["valkey_password"]

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start everything, and wait until the replica follows."""
        self.master.start()
        self.replica.home.prepare()
        shutil.copy(self.master.home.root / SECRETS, self.replica.home.root / SECRETS)
        self.replica.start()
        for server in (self.master, self.replica):
            self._client(server).config_set("masterauth", self.password)
        following = self._client(self.replica)
        following.replicaof("127.0.0.1", self.master.port)
        assert wait_until(lambda: following.info("replication").get("master_link_status") == "up", 60)
        self._start_sentinel()
        self._start_proxy()

    def kill_master(self) -> None:
        """End the master as a machine that loses power; nobody promotes the replica but the sentinel."""
        assert self.master.process is not None
        self.master.process.send_signal(signal.SIGKILL)
        self.master.process.wait(60)

    def stop(self) -> None:
        for process in self._others:
            process.kill()
            process.wait(60)
        self.replica.stop()
        self.master.stop()

    def _client(self, server: EmbeddedValkey) -> redis.Redis:
        return redis.Redis.from_url(server.url, socket_timeout=10)

    def _start_sentinel(self) -> None:
        account, own = service_account(), self._folder / "sentinel"
        own.mkdir()
        settings = own / "sentinel.conf"
        settings.write_text(
            f"port {free_port()}\nbind 127.0.0.1\nsentinel monitor broker 127.0.0.1 {self.master.port} 1\n"
            f"sentinel auth-pass broker {self.password}\nsentinel down-after-milliseconds broker 1000\n"
            f"sentinel failover-timeout broker 10000\n"
        )
        as_whom = {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}
        for path in (own, settings):
            if account:
                os.chown(path, account.uid, account.gid)
        with (own / "log").open("wb") as out:
            command = [str(valkey_binary(account)), str(settings), "--sentinel"]
            self._others.append(subprocess.Popen(command, stdout=out, stderr=out, cwd="/", **as_whom))
        known = f"sentinel known-replica broker 127.0.0.1 {self.replica.port}"
        assert wait_until(lambda: known in settings.read_text(), 60), (own / "log").read_text()

    def _start_proxy(self) -> None:
        self.port, settings = free_port(), self._folder / "haproxy.cfg"
        settings.write_text(
            documented_proxy()
            .replace("PASSWORD", self.password)
            .replace("bind :6379", f"bind 127.0.0.1:{self.port}")
            .replace("10.0.0.11:6379", f"127.0.0.1:{self.master.port}")
            .replace("10.0.0.12:6379", f"127.0.0.1:{self.replica.port}")
        )
        assert HAPROXY is not None
        with (self._folder / "haproxy.log").open("wb") as out:
            self._others.append(subprocess.Popen([HAPROXY, "-f", str(settings)], stdout=out, stderr=out))
        said = self._folder / "haproxy.log"
        assert wait_until(lambda: "broker/two is DOWN" in said.read_text(), 60), said.read_text()


def documented_proxy() -> str:
    """Return the configuration of HAProxy that docs/operations.md recommends in front of brokers."""
    page = (ROOT / "docs" / "operations.md").read_text()
    return next(block for block in re.findall(r"```haproxy\n(.*?)```", page, re.DOTALL) if "tcp-check" in block)


@contextmanager
def broker_pair(folder: Path) -> Iterator[BrokerPair]:
    """Run all of it below a folder that the service account may pass through. Skipped without HAProxy."""
    if HAPROXY is None:
        pytest.skip("haproxy is not installed")
    folder.mkdir()
    folder.chmod(0o711)
    pair = BrokerPair(folder)
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()
