"""Two hosts on one machine: network namespaces joined by a cable, each with its own addresses, ports and loopback."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_NETWORK = 0x40000000
"""CLONE_NEWNET: what of a namespace is entered."""


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    home: Path

    @property
    def inside(self) -> list[str]:
        """What comes before a command that is to run on this host."""
        return ["ip", "netns", "exec", self.name]

    def thread(self) -> ThreadPoolExecutor:
        """Return a thread on this host; connections that it opens belong there."""
        return ThreadPoolExecutor(1, initializer=partial(_enter, self.name))


def missing() -> str:
    """Return why there can be no two hosts here, or nothing."""
    if shutil.which("ip") is None:
        return "no `ip` command (apt-get install iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root rights"
    name = f"probe{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no network namespaces here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Make two hosts that reach each other, and nothing else."""
    names = [f"host{side}{os.getpid()}" for side in "ab"]
    cables = [f"v{side}{os.getpid()}" for side in "ab"]
    hosts = []
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for number, (name, cable) in enumerate(zip(names, cables, strict=True), 1):
            address = f"10.213.7.{number}"
            _ip("link", "set", cable, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            for link in (cable, "lo"):
                _ip("-n", name, "link", "set", link, "up")
            home = folder / name
            home.mkdir()
            hosts.append(Host(name, address, home))
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _enter(name: str) -> None:
    """Move this thread, and no other, to a namespace."""
    with open(f"/run/netns/{name}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")
