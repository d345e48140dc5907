"""The Dramatiq broker of the data plane.

Invariants. A message only says "look at command n of run r"; losing or repeating one changes nothing. No retries (the
driver sends again), no time limits (work is cooperative), no result store. A worker that dies by SIGKILL is noticed
within `HEARTBEAT_MS`: polls trigger maintenance. A worker at full capacity fetches nothing, so `BrokerHeartbeat` shows
that it lives. An idle worker sleeps until a sender names its queue on the wake channel; a lost hint costs `POLL_MS`. A
broker that hangs is treated like one that is away: every call has a time limit and none is tried again.
"""

import threading
import time
from collections.abc import Callable, Iterable

import redis
import structlog
from dramatiq import Consumer, Message, MessageProxy
from dramatiq.brokers.redis import RedisBroker
from dramatiq.errors import BrokerConnectionError
from dramatiq.middleware import AsyncIO
from redis.backoff import NoBackoff
from redis.retry import Retry

from flexmarl.contracts.commands import BROKER_TIMEOUT_S
from flexmarl.contracts.wake_words import WAKE_CHANNEL, wake_channel

log = structlog.get_logger(__name__)

HEARTBEAT_MS = 4000
"""A worker silent for longer is dead to the broker and its messages go back to their queues."""
MAINTENANCE_CHANCE = 500_000
"""Of a million commands: about once a second on an idle queue."""
POLL_MS = 500
"""How long an idle queue goes without a look when no hint comes."""
SUBSCRIBE_AGAIN_S = 0.5
AWAY_S = 0.2
"""Pause before a broker that was away is asked again; dramatiq itself would wait for seconds."""
COMPLAIN_S = 5.0
AWAY = (BrokerConnectionError, redis.RedisError)
"""What a broker that is away, or hangs, raises."""


class Hints(threading.Thread):
    """Listens on the wake channel and wakes whoever waits for what is named there, as the consumer of a queue."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(name="broker-hints", daemon=True)
        self._client = client
        self._wakes: dict[str, Callable[[], object]] = {}
        self._stopping = threading.Event()
        self._heard = True

    def when(self, name: str, wake: Callable[[], object]) -> None:
        """Call `wake`, in this thread, at each hint of the name, and when hints may have been missed."""
        self._wakes[name] = wake

    def run(self) -> None:
        """Listen until stopped; while the connection is down, consumers poll."""
        while not self._stopping.is_set():
            try:
                self._listen()
            except (redis.RedisError, OSError) as error:
                if self._heard:
                    log.warning("no hints from the broker, polling", error=str(error))
                self._heard = False
                self._stopping.wait(SUBSCRIBE_AGAIN_S)

    def stop(self) -> None:
        """End the thread within a second."""
        self._stopping.set()

    def _listen(self) -> None:
        with self._client.pubsub(ignore_subscribe_messages=True) as channel:
            known: set[str] = set()
            while not self._stopping.is_set():
                if new := self._wakes.keys() - known:
                    channel.subscribe(*map(wake_channel, new))
                    known |= new
                    for name in new:
                        self._wakes[name]()  # something may have come while nobody listened
                self._heard = True
                message = channel.get_message(timeout=1.0 if known else SUBSCRIBE_AGAIN_S)
                word = message["channel"].decode().removeprefix(f"{WAKE_CHANNEL}:") if message else ""
                if (named := self._wakes.get(word)) is not None:
                    named()


def brief_client(url: str) -> redis.Redis:
    """Return a client whose calls end within `BROKER_TIMEOUT_S`, whatever the server does."""
    return redis.Redis.from_url(
        url,
        socket_timeout=BROKER_TIMEOUT_S,
        socket_connect_timeout=BROKER_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


class HintedConsumer(Consumer):
    """A consumer that waits for a hint instead of sleeping between polls."""

    def __init__(
        self, inner: Consumer, hint: threading.Event, timeout_ms: int, turned: Callable[[], None] = lambda: None
    ) -> None:
        self._inner, self._hint, self._timeout_s = inner, hint, timeout_ms / 1000
        self._quiet_until = 0.0
        self._turned = turned

    def __next__(self) -> MessageProxy | None:
        self._turned()
        self._hint.clear()  # before the look: a hint that comes during it is kept
        message: MessageProxy | None = None
        try:
            message = next(self._inner)
        except AWAY as error:
            self._away(error)
            time.sleep(AWAY_S)
            return None
        if message is None:
            self._hint.wait(self._timeout_s)
        return message

    def ack(self, message: MessageProxy) -> None:
        try:
            self._inner.ack(message)
        except AWAY as error:
            self._away(error)  # the message may come again: its command is done, so that changes nothing
        self._hint.set()  # there is room for another one

    def _away(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + COMPLAIN_S
            log.warning("broker is away", error=str(error))

    def nack(self, message: MessageProxy) -> None:
        try:
            self._inner.nack(message)
        except AWAY as error:
            self._away(error)  # as with ack: nobody works on what the command's row says is done
        self._hint.set()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        try:
            self._inner.requeue(messages)
        except AWAY as error:
            self._away(error)  # the broker gives them back by itself once this worker is silent

    def close(self) -> None:
        self._inner.close()


class PromptBroker(RedisBroker):
    """A Redis broker that is woken by hints, without delay queues: nothing here is sent for later.

    Async actors run on the event loop of the process's first worker; a second one, for queues that must not wait for
    the threads of the first, brings no loop of its own.
    """

    def __init__(
        self,
        url: str,
        *,
        own_loop: bool = True,
        watch: Callable[[str], Callable[[], None]] = lambda queue: lambda: None,
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            client=brief_client(url),
            middleware=[AsyncIO()] if own_loop else [],
            maintenance_chance=MAINTENANCE_CHANCE,
            heartbeat_timeout=HEARTBEAT_MS,
        )
        self.hints = Hints(self.client)
        self._watch = watch
        """Queue -> what its consumer calls each time it turns."""

    def begin(self) -> None:
        """Listen to hints, and show the broker that this worker lives."""
        self.hints.start()
        BrokerHeartbeat(self).start()

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = POLL_MS) -> Consumer:
        """Return a consumer of the queue; the inner one never sleeps."""
        inner = super().consume(queue_name, prefetch, timeout=0)
        hint = threading.Event()
        self.hints.when(queue_name, hint.set)
        return HintedConsumer(inner, hint, timeout, self._watch(queue_name))

    def push(self, queue_name: str, actor: str, run_id: int, no: int) -> None:
        """Tell a queue's workers, this one among them, to look at a command. The driver says it too, later."""
        message: Message[None] = Message(
            queue_name=queue_name, actor_name=actor, args=(run_id, no), kwargs={}, options={}
        )
        try:
            self.enqueue(message)
            self.client.publish(wake_channel(queue_name), "")
        except AWAY as error:
            log.warning("broker does not answer", error=str(error))

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue and nothing else."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)


class BrokerHeartbeat(threading.Thread):
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
