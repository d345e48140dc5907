"""The hints of the live socket as server-sent events, for scripts: `topic T is at sequence n`, then read again.

A hint may be lost on its way; what it would have told is told at the next heartbeat. No sequence goes back: a hint that
comes late is left out. An event's id holds the sequences told so far; a client that comes back with it in Last-Event-ID
is told only what has moved since. Who may listen is looked up each minute and when rights change; the stream ends when
a topic is no longer theirs. `StreamSlots` bounds the streams of one caller in this process.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer

from flexmarl.controlplane.accounts.callers import Caller, actor_now
from flexmarl.controlplane.common import live, measuring
from flexmarl.controlplane.common.problems import RateLimited
from flexmarl.controlplane.telemetry.live.topics import sequence_of

HEARTBEAT_S = 15.0
REAUTHORISE_S = 45.0
"""Rights are looked at again behind so long, and a heartbeat later at the latest."""
LONGEST_S = 3600.0
"""A stream ends after an hour; the client connects again."""
MAX_STREAMS = 8
"""Open streams of one caller."""


class StreamSlots:
    """Counts the open streams of each caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, caller: str) -> None:
        """Take a place. Raises RateLimited when the caller has none left."""
        with self._lock:
            if self._taken[caller] >= MAX_STREAMS:
                detail = f"You have {MAX_STREAMS} open streams. Close one, or subscribe to more topics on one stream."
                raise RateLimited(detail, headers={"Retry-After": "5"})
            self._taken[caller] += 1
        measuring.PROCESS.opened("streams")

    def leave(self, caller: str) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]
        measuring.PROCESS.opened("streams", -1)


PLACES = StreamSlots()


class Listener:
    """One caller's stream of hints."""

    def __init__(self, caller: Caller, seqs: Mapping[str, int], told: Mapping[str, int]) -> None:
        self.caller = caller
        self.seqs = dict(seqs)
        """Topic -> its sequence when the stream was asked for."""
        self.told = dict(told)
        """Topic -> the sequence the client has already acted on."""

    async def events(self) -> AsyncIterator[bytes]:
        """Yield events until the caller goes, may no longer listen, or an hour has passed."""
        layer: Any = get_channel_layer()
        channel = await layer.new_channel()
        end = time.monotonic() + LONGEST_S
        try:
            for group in self._groups():
                await layer.group_add(group, channel)
            yield b"retry: 1000\n\n"
            # Read behind the subscription: a change in between is in this sequence or comes as a hint.
            for topic, seq in (await self._newest()).items():
                if seq == 0 or seq != self.told.get(topic):
                    yield self._event(topic, seq)
            async for event in self._relayed(layer, channel, end):
                yield event
        finally:
            for group in self._groups():
                await layer.group_discard(group, channel)

    def _groups(self) -> list[str]:
        return [live.RIGHTS, *map(live.group_of, self.seqs)]

    async def _relayed(self, layer: Any, channel: str, end: float) -> AsyncIterator[bytes]:
        checked = time.monotonic()
        waiting = asyncio.ensure_future(layer.receive(channel))
        try:
            while time.monotonic() < end:
                # The wait is kept across heartbeats: a cancelled one gives the subscription up.
                await asyncio.wait({waiting}, timeout=HEARTBEAT_S)
                if (
                    not waiting.done()
                    or self._concerned(waiting.result())
                    or time.monotonic() - checked >= REAUTHORISE_S
                ):
                    checked = time.monotonic()
                    newest = await self._newest()
                    if set(newest) != set(self.seqs):
                        return
                    for topic, seq in newest.items():
                        if seq > self.told.get(topic, 0):
                            yield self._event(topic, seq)
                if not waiting.done():
                    yield b": still here\n\n"
                    continue
                body = waiting.result().get("body")
                waiting = asyncio.ensure_future(layer.receive(channel))
                if body is None:
                    continue
                # One that was on its way when the topic's sequence was read may be behind it.
                if body["seq"] >= self.told.get(body["topic"], 0):
                    yield self._event(body["topic"], body["seq"])
        finally:
            waiting.cancel()

    def _concerned(self, message: dict[str, Any]) -> bool:
        return message.get("of") in self.caller.names

    def _event(self, topic: str, seq: int) -> bytes:
        self.told[topic] = seq
        data = json.dumps({"topic": topic, "seq": seq}, separators=(",", ":"))
        return f"event: hint\nid: {written(self.told)}\ndata: {data}\n\n".encode()

    @database_sync_to_async
    def _newest(self) -> dict[str, int]:
        actor = actor_now(self.caller)
        found = {topic: sequence_of(actor, topic) for topic in self.seqs}
        return {topic: seq for topic, seq in found.items() if seq is not None}


class LiveStream:
    """A caller's events together with their place, which is given back once, however the stream ends.

    `close` is what the server calls for an answer that nobody came to read.
    """

    def __init__(self, caller: str, events: AsyncIterator[bytes]) -> None:
        PLACES.take(caller)
        self._caller: str | None = caller
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for event in self._events:
                yield event
        finally:
            self.close()

    def close(self) -> None:
        """Give the place back."""
        caller, self._caller = self._caller, None
        if caller is not None:
            PLACES.leave(caller)


def written(told: Mapping[str, int]) -> str:
    """Write an event id: the sequence of each topic."""
    return ",".join(f"{topic}@{seq}" for topic, seq in sorted(told.items()))


def read(event_id: str) -> dict[str, int]:
    """Read a Last-Event-ID; what is not one of ours says nothing."""
    pairs = (part.rpartition("@") for part in event_id.split(",")[:64])
    return {topic: int(seq) for topic, _, seq in pairs if topic and seq.isascii() and seq.isdigit() and len(seq) < 19}
