"""Pushes: hints that there is a command to look at. Losing, repeating or reordering one changes nothing.

Invariant: a push never blocks the driver's loop and never raises into it. Two threads carry them out; what does not
get through is pushed again when the command table says that nobody took it.
"""

import asyncio
import queue
import threading
import time
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import redis
import structlog
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from flexmarl.contracts.wake_words import held_word, node_word, wake_channel
from flexmarl.controlplane.common.brief_redis import client_of

log = structlog.get_logger(__name__)

WAITING = 10_000
"""Pushes that may wait; more are dropped, they come again."""
NODE_TIMEOUT_S = 2.0
COMPLAIN_S = 10.0
"""A broker or node that is away is named in the log this often."""


@dataclass(frozen=True, slots=True)
class BrokerPush:
    queue: str
    actor: str
    run_id: int
    no: int


@dataclass(frozen=True, slots=True)
class NodePush:
    address: str
    run_id: int
    no: int
    lease_id: int
    node: str = ""
    """Name of a node without an address."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A word without a message."""

    word: str
    lease_id: int = 0
    """Of the child that the word of a node is about; 0 is all."""


class Pushes(Protocol):
    """Where pushes go."""

    def to_broker(self, push: BrokerPush) -> None:
        """Put a message that names a command into a Dramatiq queue."""

    def to_node(self, push: NodePush) -> None:
        """Tell a node to look at a command of one of its children."""

    def to_players(self, pool: str) -> None:
        """Tell rollout workers of a pool to look which of the commands that they play are held."""


class BrokerThread(threading.Thread):
    """Enqueues Dramatiq messages by actor name, without importing any actor."""

    def __init__(self, url: str) -> None:
        super().__init__(name="push-broker", daemon=True)
        self._broker = RedisBroker(client=client_of(url), middleware=[])  # type: ignore[no-untyped-call]
        self._waiting: queue.Queue[BrokerPush | Hint | None] = queue.Queue(WAITING)
        self._quiet_until = 0.0

    def send(self, push: BrokerPush | Hint) -> None:
        """Hand a push over, or a hint alone; dropped when too many wait."""
        try:
            self._waiting.put_nowait(push)
        except queue.Full:
            self._complain("the queue of pushes is full")

    def run(self) -> None:
        """Send until stopped."""
        while (push := self._waiting.get()) is not None:
            try:
                if isinstance(push, BrokerPush):
                    self._enqueue(push)
                    push = Hint(push.queue)
                self._broker.client.publish(wake_channel(push.word), str(push.lease_id or ""))
            except redis.RedisError as error:
                self._complain(str(error))

    def stop(self) -> None:
        """End the thread after what waits now, as far as the broker answers."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self.join(0.5)

    def _enqueue(self, push: BrokerPush) -> None:
        message: Message[None] = Message(
            queue_name=push.queue, actor_name=push.actor, args=(push.run_id, push.no), kwargs={}, options={}
        )
        self._broker.enqueue(message)

    def _complain(self, error: str) -> None:
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + COMPLAIN_S
            log.warning("broker_push_failed", error=error)


class NodeThread(threading.Thread):
    """Posts to nodes over persistent connections, from one event loop. A node that hangs delays nobody else."""

    def __init__(self, cluster_key: str) -> None:
        super().__init__(name="push-nodes", daemon=True)
        self._headers = {"Authorization": f"Bearer {cluster_key}"}
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet_until: dict[str, float] = {}

    def send(self, push: NodePush) -> None:
        """Hand a push over; dropped when too many wait."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._begin, push)

    def run(self) -> None:
        """Send until stopped."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        if self._session is not None:
            self._loop.run_until_complete(self._session.close())
        self._loop.close()

    def stop(self) -> None:
        """End the thread; posts on their way are abandoned."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self.join(0.5)

    def _begin(self, push: NodePush) -> None:
        if len(self._tasks) < WAITING:
            task = self._loop.create_task(self._post(push))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _post(self, push: NodePush) -> None:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=NODE_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        body = {"run_id": push.run_id, "no": push.no, "lease_id": push.lease_id}
        try:
            async with self._session.post(f"http://{push.address}/v1/commands", json=body) as answer:
                if answer.status >= 300:
                    self._complain(push.address, f"status {answer.status}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._complain(push.address, str(error) or type(error).__name__)

    def _complain(self, address: str, error: str) -> None:
        now = time.monotonic()
        if now >= self._quiet_until.get(address, 0.0):
            self._quiet_until[address] = now + COMPLAIN_S
            log.warning("node_push_failed", address=address, error=error)


class Pusher:
    """Both ways out."""

    def __init__(self, broker_url: str, cluster_key: str) -> None:
        self._broker = BrokerThread(broker_url)
        self._nodes = NodeThread(cluster_key)

    def start(self) -> None:
        """Start the threads."""
        self._broker.start()
        self._nodes.start()

    def stop(self) -> None:
        """End the threads within a second."""
        self._broker.stop()
        self._nodes.stop()

    def to_broker(self, push: BrokerPush) -> None:
        """Put a message that names a command into a Dramatiq queue."""
        self._broker.send(push)

    def to_node(self, push: NodePush) -> None:
        """Tell a node to look at a command of one of its children; one without an address hears it of the broker."""
        if push.address:
            self._nodes.send(push)
        else:
            self._broker.send(Hint(node_word(push.node), push.lease_id))

    def to_players(self, pool: str) -> None:
        """Tell rollout workers of a pool to look which of the commands that they play are held."""
        self._broker.send(Hint(held_word(pool)))
