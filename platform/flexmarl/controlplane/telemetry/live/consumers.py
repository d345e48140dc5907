"""The live socket `/ws/v1/`: a page, or a script with a ticket, subscribes to topics and is told when one has
changed; it then re-reads.

Nothing is promised about delivery, so a slow or broken socket costs nothing but time. Who may listen is looked up at
each subscription, whenever rights change, and for every topic at least each `REAUTHORISE_S`: a topic that is no longer
the caller's is dropped with a message, a caller who may read nothing any more is disconnected, and so is everybody
whose rights cannot be looked up. What a client sends is never trusted to be anything.
"""

import asyncio
import json
import random
from typing import Any

import redis
import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.db import DatabaseError

from flexmarl.controlplane.accounts.callers import Caller, actor_now
from flexmarl.controlplane.accounts.sockets import caller_of
from flexmarl.controlplane.common import live, measuring
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.telemetry.live.topics import MAX_TOPICS, is_topic, sequence_of

log = structlog.get_logger(__name__)
REAUTHORISE_S = 60.0
LARGEST_MESSAGE = 64 * 1024
UNAUTHENTICATED, NO_LONGER_ALLOWED = 4401, 4403
"""Close codes; a client need not connect again after them."""
BINARY, MALFORMED, TOO_LARGE, TRY_LATER = 1003, 1007, 1009, 1013
"""Those of RFC 6455 and its registry: a frame that is no text, no JSON, or too large; broker or database are away."""


class LiveConsumer(AsyncJsonWebsocketConsumer):
    """One socket of one signed-in browser, or of one script."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the socket; when the broker is away the client is told to come again."""
        try:
            await super().__call__(scope, receive, send)
        except redis.RedisError as error:
            log.warning("socket_closed", reason="the broker does not answer", error=str(error))
            await send({"type": "websocket.close", "code": TRY_LATER})

    async def connect(self) -> None:
        """Accept signed-in people, and whoever came with a ticket: no further than the token it was asked for with."""
        self.topics: set[str] = set()
        self.caller = caller_of(self.scope)
        self.checking: asyncio.Task[None] | None = None
        measuring.PROCESS.opened("sockets")
        await self.accept()
        if await self._sequences([]) is None:
            return
        await self.channel_layer.group_add(live.RIGHTS, self.channel_name)
        self.checking = asyncio.create_task(self._check_for_ever())

    async def disconnect(self, code: int) -> None:
        """Leave all topics."""
        measuring.PROCESS.opened("sockets", -1)
        if self.checking is not None:
            self.checking.cancel()
            await self.channel_layer.group_discard(live.RIGHTS, self.channel_name)
        for topic in list(self.topics):
            await self._leave(topic)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Read a message; one that is none closes the socket with a code that says why."""
        if text_data is None:
            await self.close(code=BINARY)
        elif len(text_data) > LARGEST_MESSAGE:
            await self.close(code=TOO_LARGE)
        else:
            try:
                content = json.loads(text_data)
            except (ValueError, RecursionError):
                await self.close(code=MALFORMED)
                return
            await self.receive_json(content)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """Handle `{"subscribe": [topics]}` and `{"unsubscribe": [topics]}`."""
        if not isinstance(content, dict):
            await self.send_json({"error": "Send an object with subscribe or unsubscribe."})
            return
        for topic in _texts(content.get("unsubscribe")):
            await self._leave(topic)
        wanted = _texts(content.get("subscribe"))
        if len(wanted) > MAX_TOPICS:
            await self.send_json({"error": f"At most {MAX_TOPICS} topics."})
            return
        for topic in wanted:
            await self._join(topic)

    async def nudge(self, message: dict[str, Any]) -> None:
        """Pass a hint on."""
        if message["body"]["topic"] in self.topics:
            await self.send_json(message["body"])

    async def rights(self, message: dict[str, Any]) -> None:
        """Look again when it is this caller whose rights changed."""
        if message["of"] in self.caller.names:
            await self._check()

    async def _join(self, topic: str) -> None:
        seq = None
        if is_topic(topic) and len(self.topics | {topic}) <= MAX_TOPICS:
            # Read behind the subscription: a change in between is in this sequence or comes as a hint.
            await self.channel_layer.group_add(live.group_of(topic), self.channel_name)
            self.topics.add(topic)
            found = await self._sequences([topic])
            if found is None:
                return
            seq = found[0]
            if seq is None:
                await self._leave(topic)
        if seq is None:
            await self.send_json({"error": f"You cannot subscribe to {topic[:100]}.", "topic": topic[:100]})
        else:
            await self.send_json(live.message_of(topic, seq)["body"])

    async def _leave(self, topic: str) -> None:
        if topic in self.topics:
            self.topics.discard(topic)
            await self.channel_layer.group_discard(live.group_of(topic), self.channel_name)

    # Rights ----------------------------------------------------------------------------------------------------------

    async def _check_for_ever(self) -> None:
        while True:
            await asyncio.sleep(REAUTHORISE_S * random.uniform(0.7, 0.95))  # sockets that came together part
            try:
                await self._check()
            except Exception as error:  # whatever it is: nobody listens on whose rights are not looked at any more
                log.warning("rights_not_checked", error=str(error))
                await self.close(code=TRY_LATER)
                return

    async def _check(self) -> None:
        """Drop what the caller may not read any more."""
        topics = list(self.topics)
        found = await self._sequences(topics)
        lost = [topic for topic, seq in zip(topics, found or (), strict=False) if seq is None and topic in self.topics]
        self.topics.difference_update(lost)  # before anything waits for the broker or for a client that does not read
        for topic in lost:
            await self.channel_layer.group_discard(live.group_of(topic), self.channel_name)
            await self.send_json({"error": f"You may no longer subscribe to {topic}.", "topic": topic})

    async def _sequences(self, topics: list[str]) -> list[int | None] | None:
        """Return the sequence of each topic, None for one that the caller may not read.

        Closes the socket and returns None when the caller may read nothing, or when that cannot be looked up.
        """
        try:
            actor, sequences = await _look(self.caller, topics)
        except DatabaseError as error:
            log.warning("rights_not_read", error=str(error))
            await self.close(code=TRY_LATER)
            return None
        if actor.may(Scope.RUNS_READ) or actor.may(Scope.CLUSTER_READ):
            return sequences
        await self.close(code=UNAUTHENTICATED if actor.user_id is None else NO_LONGER_ALLOWED)
        return None


@database_sync_to_async
def _look(caller: Caller, topics: list[str]) -> tuple[Actor, list[int | None]]:
    actor = actor_now(caller)
    return actor, [sequence_of(actor, topic) for topic in topics]


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
