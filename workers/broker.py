"""The Dramatiq broker of the data plane.

Invariants. A message only says "look at command n of run r"; losing or repeating one changes nothing. No retries (the
driver sends again), no time limits (work is cooperative), no result store. A worker that dies by SIGKILL is noticed
within `HEARTBEAT_MS`: each poll may trigger maintenance. A worker at full capacity polls no queue, so `Heartbeat` shows
that it lives.
"""

import threading

import redis
import structlog
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO

log = structlog.get_logger(__name__)

HEARTBEAT_MS = 4000
"""A worker silent for longer is dead to the broker and its messages go back to their queues."""
MAINTENANCE_CHANCE = 50_000
"""Of a million polls: several a second on an idle queue."""
POLL_MS = 25
"""Ceiling of the poll interval of an idle queue."""


class PromptBroker(RedisBroker):
    """A Redis broker without delay queues: nothing here is sent for later, and each would be polled as well."""

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue and nothing else."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)


def make_broker(url: str) -> PromptBroker:
    """Connect to the broker; async actors run on one event loop per process."""
    return PromptBroker(  # type: ignore[no-untyped-call]
        url=url,
        middleware=[AsyncIO()],
        maintenance_chance=MAINTENANCE_CHANCE,
        heartbeat_timeout=HEARTBEAT_MS,
    )


class Heartbeat(threading.Thread):
    """Touches each queue several times per heartbeat time-out, also when the worker fetches nothing."""

    def __init__(self, broker: PromptBroker) -> None:
        super().__init__(name="broker-heartbeat", daemon=True)
        self._broker = broker
        self._stopping = threading.Event()

    def run(self) -> None:
        """Beat until stopped."""
        while not self._stopping.wait(HEARTBEAT_MS / 4000):
            for name in self._broker.get_declared_queues():
                try:
                    self._broker.do_qsize(name)
                except redis.RedisError as error:
                    log.warning("broker does not answer", error=str(error))
                    break

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
