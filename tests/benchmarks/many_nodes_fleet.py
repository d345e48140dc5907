"""Hosts with tokens, without engines: what the three processes of each ask and hear, from one process of its own.

`python tests/benchmarks/many_nodes_fleet.py` reads its orders as one JSON line and writes lines of JSON. It speaks the
product's own wire (`flexmarl.store.node_wire`) with the product's periods, over connections that stay: one per process
of a host for what it asks, one for each stream of news. Nothing is left out because it would find nothing.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import uvloop

from flexmarl.store import node_wire
from flexmarl.store.control import heartbeat
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from flexmarl.store.control.process_heartbeats import ProcessFacts
from workers.nodes import agent

ROLES = {"node": ("node",), "device": ("device",), "rollout": ("rollout", "reward")}
"""Process of a host -> the streams of news that it reads."""
Asked = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """An operation that a process repeats."""

    process: str
    operation: str
    every_s: float
    arguments: Callable[["Host"], Asked]


def asks() -> list[Ask]:
    """Return what the processes of an idle host ask for by the clock."""
    found = [
        Ask("node", "node_beats.beat", agent.HEARTBEAT_S, lambda h: h.beat()),
        Ask("node", "nodes.put_load", agent.LOAD_S, lambda h: h.load()),
        Ask("node", "checkpoint_rows.leaving", agent.ANYWAY_S, lambda h: {"node": h.name}),
        Ask("node", "checkpoint_rows.on_node", agent.ANYWAY_S, lambda h: {"node": h.name}),
        Ask("node", "lineage.awaited", agent.ANYWAY_S, lambda h: {}),
        Ask("node", "model_rows.held_by", agent.ANYWAY_S, lambda h: {"node": h.name}),
        Ask("node", "deletions.awaiting", agent.ANYWAY_S, lambda h: {"node": h.name}),
    ]
    return found + [
        Ask(process, "process_heartbeats.put", heartbeat.CARRIED_ROW_S, lambda h, kind=process: h.alive(kind))
        for process in ROLES
    ]


class Connection:
    """One connection that stays open and answers one request after the other; opened again when it broke."""

    def __init__(self, url: str, token: str) -> None:
        place = urlsplit(url)
        self._address = place.hostname or "", place.port or 80
        self._head = f"Host: {place.netloc}\r\nAuthorization: Bearer {token}\r\n"
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Ask, and return status and body. Raises OSError, IncompleteReadError."""
        async with self._lock:
            reader, writer = self._streams or await self._open()
            kind = f"Content-Type: {node_wire.MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(f"POST {path} HTTP/1.1\r\n{self._head}{kind}".encode() + body)
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                return int(head[9:12]), await reader.readexactly(length)
            except BaseException:
                self.close()
                raise

    async def lines(self, path: str) -> Any:
        """Yield the lines of a stream until it ends."""
        reader, writer = await self._open()
        writer.write(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if int(head[9:12]) != 200:
            raise OSError(f"status {head[9:12].decode()}")
        while int(size := await reader.readline(), 16):
            yield await reader.readexactly(int(size, 16))
            await reader.readexactly(2)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._streams = await asyncio.open_connection(*self._address)
        return self._streams

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


class Host:
    """One host: who it is, and what it says of itself."""

    def __init__(self, fleet: "Fleet", name: str, pool: str, token: str, devices: int) -> None:
        self.fleet, self.name, self.pool = fleet, name, pool
        self.life = f"{name}-life"
        self.devices = [f"{name}.cuda{number}" for number in range(devices)]
        self.asking = {process: Connection(fleet.url, token) for process in ROLES}
        self.hearing = {role: Connection(fleet.url, token) for roles in ROLES.values() for role in roles}
        self.cpu_share = 0.0
        self.tasks: list[asyncio.Task[None]] = []

    def load(self) -> Asked:
        """Return what its agent measures."""
        at = round(time.time(), 1)
        device = {"at": at, "use": round(random.random(), 2), "memory_bytes": 2**34, "temperature_c": 60}
        load = {"at": at, "cpu_share": self.cpu_share, "memory_used": 2**36}
        return {
            "name": self.name,
            "incarnation": self.life,
            "load": load,
            "devices": dict.fromkeys(self.devices, device),
        }

    def beat(self) -> Asked:
        """Return the heartbeat of its agent."""
        return {"node": self.name, "incarnation": self.life}

    def alive(self, kind: str) -> Asked:
        """Return the heartbeat of a process."""
        process = ProcessFacts(kind, self.name, f"node:{self.name}/1", 1, self.fleet.began)
        return {"process": process, "stalled_loop": "", "stalled_s": 0.0}

    async def register(self) -> None:
        """Say which devices there are."""
        facts = {"engines": ["torch"], "cpus": 32, "memory_bytes": 2**38, "os": "Linux 6.1"}
        node = NodeFacts(self.name, "", self.life, "0", facts)
        devices = [
            DeviceFacts(device, "cuda", ordinal, "H100", 80 * 2**30, self.pool)
            for ordinal, device in enumerate(self.devices)
        ]
        await self.ask("node", "nodes.register_node", {"node": node, "devices": devices})

    async def ask(self, process: str, operation: str, arguments: Asked) -> bytes | None:
        """Ask for an operation; count and time it."""
        began = time.monotonic()
        try:
            path = f"/nodes/operations/{operation}"
            status, body = await self.asking[process].post(path, node_wire.encode(arguments))
        except (OSError, asyncio.IncompleteReadError) as error:
            self.fleet.errors[f"{operation}: {type(error).__name__}"] += 1
            return None
        self.fleet.taken_s.append(time.monotonic() - began)
        self.fleet.asked[operation] += 1
        if status != 200:
            self.fleet.errors[f"{operation}: {status} {body[:120].decode(errors='replace')}"] += 1
            return None
        return body

    def begin(self) -> None:
        """Work by the clock and listen, each from a moment of its own."""
        self.tasks = [asyncio.create_task(self._repeat(ask)) for ask in asks()]
        self.tasks += [asyncio.create_task(self._hear(role)) for role in self.hearing]

    def fall_silent(self) -> None:
        """Stop without a word; connections stay open, as of a host that lost its power."""
        for task in self.tasks:
            task.cancel()

    async def _repeat(self, ask: Ask) -> None:
        due = time.monotonic() + random.random() * ask.every_s
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.ask(ask.process, ask.operation, ask.arguments(self))
            due = max(due, time.monotonic() - ask.every_s) + ask.every_s

    async def _hear(self, role: str) -> None:
        await asyncio.sleep(random.random())
        while True:
            try:
                async for line in self.hearing[role].lines(f"/nodes/news?role={role}"):
                    self.fleet.heard["quiet" if line == b"\n" else role] += 1
                    if role == "node" and line != b"\n":
                        await self.ask("node", "node_beats.beat", self.beat())
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                self.fleet.errors[f"news {role}: {type(error).__name__} {error}"] += 1
            self.hearing[role].close()
            await asyncio.sleep(0.5)


class Fleet:
    """All hosts, and what they saw since it was asked last."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.url, self.began = orders["url"], time.time()
        self.asked: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.taken_s: list[float] = []
        self.hosts = {
            one["node"]: Host(self, one["node"], one["pool"], one["token"], one["devices"]) for one in orders["hosts"]
        }

    async def run(self) -> None:
        """Register all, then work and follow the orders of standard input."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        gate = asyncio.Semaphore(8)

        async def registered(host: Host) -> None:
            async with gate:
                await host.register()
                host.begin()

        await asyncio.gather(*map(registered, self.hosts.values()))
        say({"ready": len(self.hosts), "errors": self.errors})
        while line := await reader.readline():
            order = json.loads(line)
            if order["do"] == "end":
                return
            say(await self._followed(order))

    async def _followed(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "load":
                host = self.hosts[order["node"]]
                host.cpu_share = order["cpu_share"]
                began = time.time()
                await host.ask("node", "nodes.put_load", host.load())
                return {"at": began}
            case "silence":
                for name in order["nodes"]:
                    self.hosts[name].fall_silent()
                return {"at": time.time()}
        taken = sorted(self.taken_s)
        seen = {
            "asked": dict(self.asked),
            "heard": dict(self.heard),
            "errors": dict(self.errors),
            "p50_s": taken[len(taken) // 2] if taken else 0.0,
            "p99_s": taken[len(taken) * 99 // 100] if taken else 0.0,
        }
        self.asked.clear(), self.heard.clear(), self.errors.clear(), self.taken_s.clear()
        return seen


def say(body: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(Fleet(json.loads(sys.stdin.readline())).run())
