"""Device worker and node processes with fake children, pushed to as a driver does."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import dramatiq
import pytest

from flexmarl.contracts.commands import HostLease
from flexmarl.contracts.events import DeviceUse
from flexmarl.store.control import commands, engines
from tests.support.forked import WORKERS, Process, started
from tests.support.infrastructure import GROWN, remark
from tests.support.store_story import Story
from workers.broker import PromptBroker

T = TypeVar("T")
SMALL_PROCESS_S = 0.1
"""What `slowness` starts takes so long where nothing else is at work."""
MOST_SLOW = 4.0
"""Bounds grow no further: on a machine that is slower still, a promise about time is broken or not measured."""


class Machine:
    """Starts the processes of one machine named `box`."""

    def __init__(self, story: Story, database_url: str, redis_url: str, home: Path) -> None:
        self.story = story
        self.environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "FLEXMARL_HOME": str(home),
            "FLEXMARL_NODE": "box",
            "FLEXMARL_CLUSTER_KEY": "key",
        }
        self.broker = PromptBroker(redis_url)
        self.processes: list[Process] = []

    def start(self, **extra: str) -> Process:
        return self._start("fake_device_worker", **extra)

    def start_node(self, **extra: str) -> Process:
        return self._start("workers.node", **extra)

    def _start(self, module: str, **extra: str) -> Process:
        process = started(module, {**self.environment, **extra}, imported=WORKERS)
        self.processes.append(process)
        return process

    def host(self) -> tuple[int, int]:
        """Lease the engine's device and order its hosting; returns (lease, command)."""
        lease_id = self.story.granted()[DeviceUse.ENGINE]
        no = self.story.issue(HostLease(lease_id=lease_id, device_id="box.cpu0", use=DeviceUse.ENGINE))
        return lease_id, no

    def push(self) -> None:
        due = [one for one in commands.due(self.story.conn, 1) if one.kind == "host_lease"]
        for one in due:
            self.broker.enqueue(
                dramatiq.Message(queue_name=one.queue, actor_name=one.kind, args=(1, one.no), kwargs={}, options={})
            )
        commands.mark_sent(self.story.conn, 1, [one.no for one in due])

    def serving(self, besides: str = "", within_s: float = 60.0) -> engines.EngineRoute:
        """Wait for an engine of another incarnation, pushing meanwhile."""

        def look() -> engines.EngineRoute | None:
            self.push()
            found = [route for route in engines.routes(self.story.conn, 1) if route.incarnation != besides]
            return found[0] if found else None

        return wait_for(look, within_s)

    def lease(self) -> tuple[str, int, float, int]:
        row = self.story.conn.execute(
            "SELECT state, pid, pid_started, fence FROM store.lease WHERE device_id = 'box.cpu0'"
        ).fetchone()
        assert row is not None
        return row

    def secret(self) -> str:
        """Return what opens every path of the engine's child: its host's alone to know."""
        row = self.story.conn.execute("SELECT secret FROM store.lease WHERE device_id = 'box.cpu0'").fetchone()
        assert row is not None
        return str(row[0])

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_for(look: Callable[[], T], within_s: float = 60.0) -> T:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    pytest.fail(f"did not happen within {within_s} s")


def slowness() -> float:
    """Return by how much a bound of the running test grows: as much longer as a small process takes now than on a
    machine without other work, at least 1, at most `MOST_SLOW`. What grew stands in the summary of the session."""
    began = time.monotonic()
    for _ in range(3):
        subprocess.run([sys.executable, "-c", "import asyncio, http.client, json, subprocess"], check=True)
    return grown((time.monotonic() - began) / (3 * SMALL_PROCESS_S), MOST_SLOW)


def grown(slower: float, most: float) -> float:
    """Return the factor of a bound on a machine that is so much slower, and say so where it is not 1."""
    factor = min(max(1.0, slower), most)
    if factor > 1.0:
        remark(GROWN, f"{factor:.1f} times, the machine is {slower:.1f} times slower than alone")
    return factor
