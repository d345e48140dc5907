"""The live socket `/ws/v1/`: a page, or a script with a ticket, subscribes to topics and is told when one has
changed; it then re-reads.

Nothing is promised about delivery, so a slow or broken socket costs nothing but time. Who may listen is checked at each
subscription, and again while listening, at most `REAUTHORISE_S` after it changed.
"""

import time
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from flexmarl.controlplane.accounts.queries import current_actor
from flexmarl.controlplane.common import live, measuring
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.telemetry.topics import MAX_TOPICS, sequence_of

REAUTHORISE_S = 60.0
UNAUTHENTICATED, NO_LONGER_ALLOWED = 4401, 4403
"""Close codes; a client need not connect again after them."""


class LiveConsumer(AsyncJsonWebsocketConsumer):
    """One socket of one signed-in browser."""

    async def connect(self) -> None:
        """Accept signed-in people, and whoever came with a ticket: no further than the token it was asked for with."""
        self.topics: set[str] = set()
        self.caller = self.scope.get("caller") or (getattr(self.scope.get("user"), "pk", None), None)
        self.checked_at = 0.0
        measuring.PROCESS.opened("sockets")
        await self.accept()
        if not await self._may_listen():
            await self.close(code=UNAUTHENTICATED)

    async def disconnect(self, code: int) -> None:
        """Leave all topics."""
        measuring.PROCESS.opened("sockets", -1)
        for topic in list(self.topics):
            await self._leave(topic)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """Handle `{"subscribe": [topics]}` and `{"unsubscribe": [topics]}`."""
        if not isinstance(content, dict):
            await self.send_json({"error": "Send an object with subscribe or unsubscribe."})
            return
        for topic in _texts(content.get("unsubscribe")):
            await self._leave(topic)
        for topic in _texts(content.get("subscribe")):
            await self._join(topic)

    async def nudge(self, message: dict[str, Any]) -> None:
        """Pass a hint on, as long as the person may still read runs."""
        if not await self._may_listen():
            await self.close(code=NO_LONGER_ALLOWED)
            return
        await self.send_json(message["body"])

    async def _join(self, topic: str) -> None:
        if (
            len(self.topics) >= MAX_TOPICS
            or not await self._may_listen()
            or await _sequence_of(self.actor, topic) is None
        ):
            await self.send_json({"error": f"You cannot listen to {topic}.", "topic": topic})
            return
        self.topics.add(topic)
        await self.channel_layer.group_add(live.group_of(topic), self.channel_name)
        # Read behind the subscription: a change in between is in this sequence or comes as a hint.
        await self.send_json(live.message_of(topic, await _sequence_of(self.actor, topic) or 0)["body"])

    async def _leave(self, topic: str) -> None:
        if topic in self.topics:
            self.topics.discard(topic)
            await self.channel_layer.group_discard(live.group_of(topic), self.channel_name)

    async def _may_listen(self) -> bool:
        now = time.monotonic()
        if self.checked_at and now - self.checked_at < REAUTHORISE_S:
            return True
        self.actor = await database_sync_to_async(current_actor)(*self.caller)
        allowed = self.actor.may(Scope.RUNS_READ) or self.actor.may(Scope.CLUSTER_READ)
        self.checked_at = now if allowed else 0.0
        return allowed


_sequence_of = database_sync_to_async(sequence_of)


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
