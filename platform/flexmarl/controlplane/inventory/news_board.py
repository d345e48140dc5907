"""What there is to look at for nodes without the broker: one look for all who listen in this process.

Invariants: looks are made when the broker says that something came, for the queues that it names, and every `LOOK_S`
for all, since a word may be lost and somebody may have fallen silent. A word wakes those alone whom it is about: the
first one at once, and those that come within `TOGETHER_S` of a look share the next one. What
is told and not fetched yet is kept once however often it is found. Messages in queues that a node would consume if it
had the broker are let go: nobody else takes them, and they only said what the rows say. At each look for all the tokens
of all are checked, too.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg
import redis.asyncio
from django.conf import settings
from django.db import OperationalError
from psycopg_pool import PoolTimeout

from flexmarl.contracts.commands import BROKER_TIMEOUT_S
from flexmarl.contracts.wake_words import WAKE_CHANNEL, held_word, node_word
from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.inventory.admission import Admission
from flexmarl.controlplane.inventory.node_work import NodeWork
from flexmarl.store.control import news, nodes
from flexmarl.store.control.news import WaitingWork
from flexmarl.store.node_operations import NodeCaller

LOOK_S = 1.0
AGAIN_S = 0.25
"""Between tries to reach a broker that is away."""
CLEAR_S = 2.0
"""Between two times at which messages of queues go."""
TOGETHER_S = 0.005
"""Least time between two looks for words."""
AWAY = (OperationalError, psycopg.OperationalError, PoolTimeout, ProblemError)
Line = dict[str, Any]
Words = dict[str, set[int]]
"""Word -> leases that it was said about; 0 is all of them."""


@dataclass(eq=False, slots=True)
class NewsListener:
    """Who holds a stream of news, and what it has not fetched yet."""

    words: frozenset[str]
    """Those of the wake channel that are about its work."""
    header: str
    """Names its token."""
    lines: dict[tuple[object, ...], Line] = field(default_factory=dict)
    refused: str = ""
    """Why its token holds no more."""
    over: bool = False
    """Nobody looks for it any more: it listens again."""
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, line: Line) -> None:
        """Keep a line until it is fetched."""
        self.lines[tuple(line.values())] = line
        self.told.set()

    def fetch(self) -> list[Line]:
        """Return what was told, and forget it."""
        self.told.clear()
        lines, self.lines = list(self.lines.values()), {}
        return lines


def words_of(conn: psycopg.Connection, caller: NodeCaller, role: str) -> list[str]:
    """Return the words that are about work of a role: names of its queues, or words of its own."""
    match role:
        case "device":
            return [f"device.{device.id}" for device in nodes.devices_of(conn, caller.node)]
        case "node":
            return [node_word(caller.node)]
        case "rollout":
            return [f"rollout.{caller.pool}", held_word(caller.pool)]
    return [f"{role}.{caller.pool}"]


class NewsBoard:
    """Everybody who listens in this process. Belongs to one event loop."""

    def __init__(self, work: NodeWork, admission: Admission) -> None:
        self._work, self._admission = work, admission
        self._listeners: dict[str, set[NewsListener]] = {}
        """Word -> whom it is about."""
        self._look_from = 0.0
        """Words are looked at no sooner than at this time of the monotonic clock."""
        self._turning: asyncio.Task[None] | None = None
        self._messages: set[str] = set()
        """Queues in which messages may lie that nobody takes."""

    @contextlib.contextmanager
    def listening(self, listener: NewsListener) -> Any:
        """Tell a listener of its work, what waits now included."""
        for word in listener.words:
            self._listeners.setdefault(word, set()).add(listener)
        self._messages |= listener.words
        if self._turning is None or self._turning.done():
            self._turning = asyncio.create_task(self._turn())
        try:
            yield
        finally:
            for word in listener.words:
                others = self._listeners[word]
                others.discard(listener)
                if not others:
                    del self._listeners[word]

    async def _turn(self) -> None:
        """Listen and look as long as somebody listens here; whatever else ends it ends their streams as well."""
        try:
            await self._listen()
        finally:
            for listener in self._here():
                listener.over = True
                listener.told.set()

    async def _listen(self) -> None:
        client = redis.asyncio.Redis.from_url(
            settings.BROKER_URL, socket_connect_timeout=BROKER_TIMEOUT_S, socket_timeout=BROKER_TIMEOUT_S
        )
        async with client, client.pubsub(ignore_subscribe_messages=True) as channel:
            subscribed, look_at, clear_at = False, 0.0, 0.0
            while self._listeners:
                words: Words = {}
                try:
                    if not subscribed:
                        await channel.psubscribe(f"{WAKE_CHANNEL}:*")
                        subscribed = True
                    if time.monotonic() >= clear_at:
                        clear_at = time.monotonic() + CLEAR_S
                        await self._clear(client)
                    words = await self._heard(channel, look_at)
                except redis.RedisError:
                    subscribed = False
                    await asyncio.sleep(AGAIN_S)  # it is away: the rows are looked at all the same
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_S
                    await asyncio.gather(self._look(None), self._check())
                elif words:
                    self._messages |= words.keys()
                    self._look_from = time.monotonic() + TOGETHER_S
                    await self._look(words)

    async def _heard(self, channel: Any, until: float) -> Words:
        """Return words that are about somebody here, those that came together; none when none came in time."""
        words: Words = {}
        while not words and (left := until - time.monotonic()) > 0:
            if message := await channel.get_message(timeout=left):
                self._hear(message, words)
        if words:
            await asyncio.sleep(self._look_from - time.monotonic())
        while message := await channel.get_message(timeout=0):
            self._hear(message, words)
        return words

    def _hear(self, message: dict[str, Any], words: Words) -> None:
        """Note the word of a message if it is about somebody here."""
        word, lease = message["channel"].decode().removeprefix(f"{WAKE_CHANNEL}:"), message["data"]
        if word in self._listeners:
            words.setdefault(word, set()).add(int(lease) if lease.isdigit() else 0)

    async def _clear(self, client: Any) -> None:
        queues, self._messages = self._messages, set()
        keys = [key for queue in queues for key in (f"dramatiq:{queue}", f"dramatiq:{queue}.msgs")]
        if keys:
            await client.delete(*keys)

    async def _look(self, words: Words | None) -> None:
        """Tell what waits: for the listeners of some words, or for all."""
        for word, leases in (words or {}).items():
            if word.startswith((node_word(""), held_word(""))):
                for lease in leases:
                    self._tell(word, {"hint": word, "lease_id": lease})
        queues = None if words is None else [word for word in words if word.startswith(_QUEUES)]
        if queues == []:
            return
        try:
            found, waiting = await self._work.done("news", _waiting, queues)
        except AWAY:
            return  # the database is away: what waits there is said at the next look
        for one in found:
            self._tell(one.queue, {"queue": one.queue, "actor": one.kind, "run_id": one.run_id, "no": one.no})
        for node in waiting:
            self._tell(node_word(node), {"hint": node_word(node), "lease_id": 0})

    def _tell(self, word: str, line: Line) -> None:
        for listener in self._listeners.get(word, ()):
            listener.tell(line)

    def _here(self) -> set[NewsListener]:
        return {one for listeners in self._listeners.values() for one in listeners}

    async def _check(self) -> None:
        """Check the tokens of all, and let those go whose token holds no more."""
        here = self._here()
        try:
            why = await self._admission.renew({one.header for one in here})
        except AWAY:
            return  # nobody can tell
        for listener in here if why else ():
            if listener.header in why:
                listener.refused = why[listener.header]
                listener.told.set()


_QUEUES = ("device.", "rollout.", "reward.")


def _waiting(conn: psycopg.Connection, queues: list[str] | None) -> tuple[list[WaitingWork], list[str]]:
    rewards = None if queues is None else [queue for queue in queues if queue.startswith("reward.")]
    commands = None if queues is None else [queue for queue in queues if not queue.startswith("reward.")]
    found = [] if commands == [] else news.open_in_queues(conn, commands)
    found += [] if rewards == [] else news.open_rewards(conn, rewards)
    return found, news.waiting_nodes(conn) if queues is None else []
