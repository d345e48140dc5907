"""What a node agent with nothing to do asks the control plane for: a thousand of them ask that all the time."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psycopg

from flexmarl.store.control.node_beats import BeatReply
from flexmarl.store.control.nodes import DeviceFacts
from flexmarl.store.node_operations import Carrier, NodeOperation
from workers import settings
from workers.door.address import DoorAddress
from workers.nodes.agent import NodeAgent

BEATS = 4
BY_THE_CLOCK = {"node_beats.beat", "nodes.put_load"}


class Asked(Carrier):
    """A control plane where nothing waits; counts what it is asked for."""

    def __init__(self, chores: list[str]) -> None:
        self.count: Counter[str] = Counter()
        self._chores = chores
        self._loop = asyncio.get_running_loop()
        self.beaten = asyncio.Event()

    def carry(self, operation: NodeOperation, arguments: dict[str, Any]) -> Any:
        self.count[operation.name] += 1
        if self.count["node_beats.beat"] >= BEATS:
            self._loop.call_soon_threadsafe(self.beaten.set)
        match operation.name:
            case "node_beats.beat":
                return BeatReply(True, chores=self._chores)
            case "lineage.awaited" | "references.of_ended":
                return {}
        return set() if operation.name in {"model_rows.held_by", "deletions.awaiting"} else []

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        yield cast("psycopg.Connection", self)


def asked_for(home: Path, chores: list[str]) -> Counter[str]:
    """Run an agent for some heartbeats; return what it asked for."""
    given = {"FLEXMARL_HOME": str(home), "FLEXMARL_NODE_TOKEN": "x", "FLEXMARL_CONTROL_URL": "http://127.0.0.1:1"}
    config = replace(settings.load(given), node="far", door=DoorAddress("http://127.0.0.1:1", "x"))

    async def story() -> Counter[str]:
        plane = Asked(chores)
        agent = NodeAgent(config, plane, [DeviceFacts("far.cpu0", "cpu", 0)], "life")
        running = asyncio.create_task(agent.run({}, "0"))
        enough = asyncio.create_task(plane.beaten.wait())
        await asyncio.wait({running, enough}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert enough.done(), running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return plane.count

    return asyncio.run(story())


def test_a_node_with_nothing_to_do_asks_for_nothing_but_its_heartbeat_and_its_load(tmp_path: Path) -> None:
    asked = asked_for(tmp_path, [])
    assert asked["node_beats.beat"] >= BEATS
    repeated = {name for name, times in asked.items() if times > 1}
    assert repeated <= BY_THE_CLOCK, asked


def test_what_a_heartbeat_names_is_looked_after_each_time(tmp_path: Path) -> None:
    asked = asked_for(tmp_path, ["models"])
    assert asked["model_rows.held_by"] > 1, asked
    assert asked["deletions.awaiting"] <= 1
