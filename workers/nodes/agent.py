"""The node agent: registers the machine, keeps a lane per child, and answers pushes of commands.

Invariants: pushes are hints; a heartbeat finds every open command of this node's children within `HEARTBEAT_S`, and
names what else there is to do, so that a node on which there is nothing to do asks for nothing else. The agent
starts and stops no leased child (device workers do), but ends leases that nobody hosts any more after proving their
process dead. One agent per node name: the one that registered last stays and gives back what the one before held.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import aiohttp
import msgspec
import psycopg
import structlog

from flexmarl.store.control import commands, leases, node_beats
from flexmarl.store.control.leases import ChildEndpoint, DeviceFacts, NodeFacts
from flexmarl.store.control.node_beats import CHECKPOINTS, DELETIONS, MODELS, BeatReply
from flexmarl.store.control.nodes import put_load
from flexmarl.store.telemetry import intervals
from flexmarl.store.telemetry.intervals import BusyInterval
from flexmarl.store.telemetry.load_reports import put_engines, until_next
from workers.children import prove_dead
from workers.database import StorePool
from workers.door.address import DoorAddress
from workers.door.broker import DoorNews, News
from workers.errors import ChildUnreachable, HostingError, NotAdmitted, WorkerError
from workers.nodes.bringing import Bringing
from workers.nodes.child_client import ChildClient
from workers.nodes.clearing import TEND_S as CLEARING_S
from workers.nodes.clearing import Clearing
from workers.nodes.clock import ClockOffset
from workers.nodes.copies import LOOK_S, Copies
from workers.nodes.datasets import TEND_S as DATASETS_S
from workers.nodes.datasets import DatasetFetching
from workers.nodes.endpoint import NodeEndpoint, Push
from workers.nodes.engine_loads import loads_of
from workers.nodes.keeping import TEND_S as KEEPING_S
from workers.nodes.keeping import Keeping
from workers.nodes.lanes import CommandLane
from workers.nodes.load import measure
from workers.nodes.models import TEND_S as MODELS_S
from workers.nodes.models import Holding, Importing
from workers.nodes.packages import TEND_S as PACKAGES_S
from workers.nodes.packages import Packages
from workers.nodes.playground import TEND_S, Playground
from workers.nodes.publishing import TEND_S as PUBLISHING_S
from workers.nodes.publishing import Publishing
from workers.nodes.receiving import TEND_S as UPLOADS_S
from workers.nodes.receiving import UploadRoutes
from workers.settings import Settings
from workers.transfer.shared import sweep as give_back_memory

log = structlog.get_logger(__name__)
T = TypeVar("T")

HEARTBEAT_S = 1.0
INTERVALS_S = 1.0
ORPHANS_S = 2.0
LOAD_S = 5.0
ANYWAY_S = 600.0
"""A chore that no heartbeat names is looked after this often, for what only this machine's disk says."""
EVERY_CONNECTION_S = 30.0


class Superseded(WorkerError):
    """Another agent registered under this node's name."""

    code = "superseded"


@dataclass(slots=True)
class Beats:
    """The heartbeats of this node, as its tasks share them."""

    told: BeatReply = field(default_factory=lambda: BeatReply(alive=True))
    """What the newest one was answered."""
    now: asyncio.Event = field(default_factory=asyncio.Event)
    """One is to be sent at once."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """An answer has come that nobody has followed yet."""
    clock: ClockOffset = field(default_factory=ClockOffset)


class NodeAgent:
    """Everything of one node; `run` returns only by cancellation or by Superseded."""

    def __init__(self, settings: Settings, pool: StorePool, devices: list[DeviceFacts], incarnation: str) -> None:
        self._settings = settings
        self._pool = pool
        self._devices = devices
        self._incarnation = incarnation
        self._lanes: dict[int, CommandLane] = {}
        self._stored: dict[str, int] = {}
        self._beats = Beats()
        self._playground = Playground(settings, self._store)
        self._keeping = Keeping(settings.home, settings.node, self._store)
        self._uploads = UploadRoutes(settings.home, settings.node, settings.upload_quota_gib)
        self._publishing = Publishing(settings, self._store)
        self._endpoint = NodeEndpoint(settings, self._playground, self._uploads, self._pushed, self._about)

    async def run(self, facts: dict[str, object], version: str) -> None:
        """Serve until cancelled."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=EVERY_CONNECTION_S)
        async with aiohttp.ClientSession(connector=connector) as session, self._endpoint.serving(session) as port:
            own = f"{self._settings.advertise_host}:{port}"
            node = self._registered_at(own, version, facts)
            address = node.address or node.peer_address
            bring = Bringing(self._settings, self._store, address)
            await self._store(lambda conn: leases.register_node(conn, node, self._devices))
            reopened = await self._store(lambda conn: commands.reopen_on_node(conn, node.name))
            devices = [device.id for device in self._devices]
            log.info("registered", node=node.name, address=own, devices=devices, reopened=reopened)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._beating())
                    tasks.create_task(self._following(session, bring))
                    tasks.create_task(self._forever(self._end_orphans, ORPHANS_S))
                    tasks.create_task(self._forever(lambda: self._fetch_intervals(session), INTERVALS_S))
                    tasks.create_task(self._forever(lambda: self._fetch_loads(session), 0.0))
                    tasks.create_task(self._forever(self._measure, LOAD_S))
                    tasks.create_task(self._forever(self._playground.tend, TEND_S))
                    tasks.create_task(self._when_due(CHECKPOINTS, self._keeping.tend, KEEPING_S, ANYWAY_S))
                    holding = Holding(self._settings, self._store, address)
                    tasks.create_task(self._when_due(MODELS, holding.tend, MODELS_S, ANYWAY_S))
                    for work, every_s in self._for_the_installation() if self._settings.door is None else ():
                        tasks.create_task(self._forever(work, every_s))
                    if (door := self._settings.door) is not None:
                        tasks.create_task(self._news(door))
                        tasks.create_task(self._forever(self._publishing.tend, PUBLISHING_S))
                    clearing = Clearing(
                        self._settings.home, self._settings.node, self._store, self._settings.keep_builds_days
                    )
                    tasks.create_task(self._when_due(DELETIONS, clearing.tend, CLEARING_S, ANYWAY_S))
            finally:
                await self._playground.close()
                await asyncio.gather(*(lane.stop() for lane in self._lanes.values()))

    def _registered_at(self, own: str, version: str, facts: dict[str, object]) -> NodeFacts:
        """Return how this node announces itself: to all who have the cluster key, or to the nodes of its pool."""
        name, life = self._settings.node, self._incarnation
        if self._settings.door is None:
            return NodeFacts(name, own, life, version, facts)
        return NodeFacts(name, "", life, version, facts, peer_address=own, peer_key=self._endpoint.key)

    def _about(self) -> dict[str, object]:
        """Return who this node is and what it hosts."""
        children = [lane.child.incarnation for lane in self._lanes.values()]
        return {"node": self._settings.node, "incarnation": self._incarnation, "children": children}

    def _for_the_installation(self) -> list[tuple[Callable[[], Awaitable[None]], float]]:
        """Return what nodes do for others as well, which takes the installation's secrets, with the pauses."""
        settings, store = self._settings, self._store
        return [
            (Importing(settings, store).tend, MODELS_S),
            (DatasetFetching(settings, store).tend, DATASETS_S),
            (Packages(settings, store).tend, PACKAGES_S),
            (Copies(settings, store).tend, LOOK_S),
            (self._uploads.tend, UPLOADS_S),
        ]

    async def _news(self, door: DoorAddress) -> None:
        """Look whenever the control plane says that commands may have come. Raises NotAdmitted."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def refused(why: str) -> None:
            loop.call_soon_threadsafe(ended.set_exception, NotAdmitted(why))

        def heard(news: News) -> None:
            loop.call_soon_threadsafe(self._pushed, Push(0, 0, news.lease_id))

        listening = DoorNews(door, "node", heard, refused)
        listening.start()
        try:
            await ended
        finally:
            listening.stop()

    async def _forever(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await work()
            except psycopg.Error as error:
                log.warning("store does not answer", error=str(error))
            await asyncio.sleep(every_s)

    async def _when_due(self, chore: str, work: Callable[[], Awaitable[None]], every_s: float, anyway_s: float) -> None:
        """Do a chore while heartbeats name it, and now and then anyway."""
        done = float("-inf")

        async def look() -> None:
            nonlocal done
            if chore in self._beats.told.chores or time.monotonic() - done >= anyway_s:
                await work()
                done = time.monotonic()

        await self._forever(look, every_s)

    # Commands --------------------------------------------------------------------------------------------------------

    async def _beating(self) -> None:
        """Show that this node lives, and hear what there is to do. Raises Superseded."""
        node = self._settings.node
        beat = partial(node_beats.beat, node=node, incarnation=self._incarnation)
        while True:
            try:
                self._beats.told = await self._store(lambda conn: self._beats.clock.timed(partial(beat, conn)))
                self._beats.heard.set()
            except psycopg.Error as error:
                log.warning("store does not answer", error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._beats.now.wait()
            self._beats.now.clear()
            if not self._beats.told.alive:
                raise Superseded(f"another node agent registered as {node!r}; set a different FLEXMARL_NODE for each")

    async def _following(self, session: aiohttp.ClientSession, bring: Bringing) -> None:
        """Follow what heartbeats say. Whatever that takes, the heartbeat goes on."""
        while True:
            await self._beats.heard.wait()
            self._beats.heard.clear()
            await self._follow(session, bring, self._beats.told.children, self._beats.told.waiting)

    async def _follow(
        self, session: aiohttp.ClientSession, bring: Bringing, children: list[ChildEndpoint], waiting: list[int]
    ) -> None:
        """Follow the children as the store knows them, and wake the lanes that have something to do."""
        for lease_id, lane in list(self._lanes.items()):
            if lane.child not in children:
                del self._lanes[lease_id]
                await lane.stop()
        for child in children:
            if child.lease_id not in self._lanes:
                self._lanes[child.lease_id] = CommandLane(child, session, self._store, bring, self._publishing)
        for lease_id in waiting:
            if lease_id in self._lanes:
                self._lanes[lease_id].wake()

    def _pushed(self, push: Push) -> None:
        """Wake the lane of the push, or all when it names none; a child that may be new asks for a heartbeat."""
        if push.lease_id not in self._lanes:
            self._beats.now.set()
        for lease_id, lane in self._lanes.items():
            if push.lease_id in (0, lease_id):
                lane.wake()

    # Reports ---------------------------------------------------------------------------------------------------------

    async def _fetch_intervals(self, session: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(self._intervals_of(ChildClient(session, lane.child)) for lane in self._lanes.values()))

    async def _intervals_of(self, client: ChildClient) -> None:
        child = client.child
        if child.incarnation not in self._stored:
            self._stored[child.incarnation] = await self._store(
                lambda conn: intervals.newest_ord(conn, child.lease_id, child.incarnation)
            )
        try:
            closed = await client.intervals(self._stored[child.incarnation])
        except ChildUnreachable:
            return  # it just died, or is too busy to answer now
        if not closed:
            return
        rows = [BusyInterval(*msgspec.structs.astuple(i)) for i in closed]
        await self._store(
            lambda conn: intervals.put(
                conn, child.run_id, child.lease_id, child.device_id, incarnation=child.incarnation, rows=rows
            )
        )
        self._stored[child.incarnation] = closed[-1].ord

    async def _fetch_loads(self, session: aiohttp.ClientSession) -> None:
        """Keep what the engines of this node are doing now, for people; once per slot."""
        await asyncio.sleep(until_next(time.time()))
        loads = await loads_of(ChildClient(session, lane.child) for lane in self._lanes.values())
        if loads:
            await self._store(lambda conn: put_engines(conn, loads))

    async def _end_orphans(self) -> None:
        """End leases that should end and that no device worker renews: its process is proved dead here.

        Memory of suspended states outlives their processes; it goes here as well.
        """
        for orphan in self._beats.told.orphans:
            try:
                await asyncio.to_thread(prove_dead, orphan.pid, orphan.pid_started)
            except HostingError as error:
                log.error("lease cannot be ended", lease_id=orphan.lease_id, error=str(error))
                continue
            await self._store(partial(leases.end_orphan, orphan=orphan, reason="its device worker is gone"))
        with contextlib.suppress(OSError):  # somebody else's folder is no reason to stop
            await asyncio.to_thread(give_back_memory, self._settings.home)

    async def _measure(self) -> None:
        """Keep what machine and devices are doing now, for people."""
        node, devices = self._settings.node, self._devices
        machine, measured = await asyncio.to_thread(measure, devices, self._beats.told.processes)
        machine |= self._beats.clock.facts()
        await self._store(lambda conn: put_load(conn, node, self._incarnation, machine, measured))

    async def _store(self, call: Callable[[psycopg.Connection], T]) -> T:
        def work() -> T:
            with self._pool.connection() as conn:
                return call(conn)

        return await asyncio.to_thread(work)
