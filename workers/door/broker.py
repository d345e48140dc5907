"""Messages of a node without the broker: news of the control plane become messages of queues in this process.

Invariants: as with the broker, a message only says "look at command n of run r". One that waits here or is worked on is
not put again; news tell of it as long as its row is open, so none is lost for good. A stream that breaks is opened
again; nothing is told meanwhile, and the rows wait. A token that holds no more ends the process.
"""

import http.client
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from dramatiq import Consumer, Message, MessageProxy
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO

from workers.door.address import DoorAddress
from workers.errors import NotAdmitted

log = structlog.get_logger(__name__)

SILENT_S = 10.0
"""A stream that says nothing for so long, not even that it lives, is opened anew."""
AGAIN_S = 0.5
NEWS = "/nodes/news"
Refused = Callable[[str], object]
"""Told once why the token holds no more."""


class News(msgspec.Struct):
    """A line: work for a queue, a word, or the end."""

    queue: str = ""
    actor: str = ""
    run_id: int = 0
    no: int = 0
    hint: str = ""
    lease_id: int = 0
    """Of the child that a hint for a node is about; 0 is all."""
    refused: str = ""


class DoorNews(threading.Thread):
    """Reads the stream of one role and hands on what it says."""

    def __init__(self, address: DoorAddress, role: str, heard: Callable[[News], object], refused: Refused) -> None:
        super().__init__(name=f"news-{role}", daemon=True)
        self._address, self._role, self._heard, self._refused = address, role, heard, refused
        self._stopping = threading.Event()

    def run(self) -> None:
        """Read until stopped, or until the token holds no more."""
        told = False
        while not self._stopping.is_set():
            try:
                self._read()
                told = False
            except NotAdmitted as refused:
                self._address.waits.end()
                self._refused(str(refused))
                return
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                if not told:
                    log.warning("no news of the control plane", role=self._role, error=str(error))
                told = True
            self._stopping.wait(AGAIN_S)

    def stop(self) -> None:
        """End the thread behind the line that it waits for."""
        self._stopping.set()

    def _read(self) -> None:
        connection = self._address.connect()
        try:
            path = self._address.path(f"{NEWS}?role={self._role}")
            connection.request("GET", path, headers=dict(self._address.headers))
            connection.sock.settimeout(SILENT_S)
            answer = connection.getresponse()
            if answer.status == http.client.UNAUTHORIZED:
                raise NotAdmitted(msgspec.json.decode(answer.read())["detail"])
            if answer.status != http.client.OK:
                raise http.client.HTTPException(f"status {answer.status}")
            while not self._stopping.is_set() and (line := answer.readline()):
                if line.strip():
                    self._told(msgspec.json.decode(line, type=News))
        finally:
            connection.close()

    def _told(self, news: News) -> None:
        if news.refused:
            raise NotAdmitted(news.refused)
        self._heard(news)


class DoorHints:
    """Who is to be woken by which word; the counterpart of the broker's wake channel."""

    def __init__(self) -> None:
        self._wakes: dict[str, Callable[[], object]] = {}

    def when(self, name: str, wake: Callable[[], object]) -> None:
        """Call `wake` at each hint of the name."""
        self._wakes[name] = wake

    def hear(self, name: str) -> None:
        """Wake whoever waits for a word."""
        if (wake := self._wakes.get(name)) is not None:
            wake()


class DoorBroker(StubBroker):
    """Queues of this process, which news of the control plane and its own pushes fill."""

    def __init__(
        self,
        address: DoorAddress,
        role: str,
        refused: Refused,
        *,
        own_loop: bool = True,
        watch: Callable[[str], Callable[[], None]] = lambda queue: lambda: None,
    ) -> None:
        super().__init__(middleware=[AsyncIO()] if own_loop else [])
        self.hints = DoorHints()
        self._news = DoorNews(address, role, self._heard, refused)
        self._watch = watch
        self._here: set[tuple[str, int, int]] = set()
        """(queue, run, number) of messages that wait or are worked on."""
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Listen to news."""
        self._news.start()

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 100) -> Consumer:
        """Return a consumer of the queue that says when it turns, and forgets what is done."""
        return _Consumer(super().consume(queue_name, prefetch, timeout), self._watch(queue_name), self._forget)

    def push(self, queue_name: str, actor: str, run_id: int, no: int) -> None:
        """Tell a queue of this process to look at a command, unless it is about to. Others hear of it as news."""
        with self._lock:
            if queue_name not in self.queues or (queue_name, run_id, no) in self._here:
                return
            self._here.add((queue_name, run_id, no))
        message: Message[None] = Message(
            queue_name=queue_name, actor_name=actor, args=(run_id, no), kwargs={}, options={}
        )
        self.enqueue(message)

    def _heard(self, news: News) -> None:
        if news.hint:
            self.hints.hear(news.hint)
        else:
            self.push(news.queue, news.actor, news.run_id, news.no)

    def _forget(self, message: MessageProxy) -> None:
        run_id, no = message.args
        with self._lock:
            self._here.discard((message.queue_name, run_id, no))


class _Consumer(Consumer):
    def __init__(self, inner: Any, turned: Callable[[], None], done: Callable[[MessageProxy], None]) -> None:
        self._inner, self._turned, self._done = inner, turned, done

    def __next__(self) -> MessageProxy | None:
        self._turned()
        message: MessageProxy | None = next(self._inner)
        return message

    def ack(self, message: MessageProxy) -> None:
        self._done(message)
        self._inner.ack(message)

    def nack(self, message: MessageProxy) -> None:
        self._done(message)
        self._inner.nack(message)
        self._inner.dead_letters.clear()  # the command's row tells what became of it

    def requeue(self, messages: Any) -> None:
        for message in messages:
            self._done(message)

    def close(self) -> None:
        self._inner.close()
