"""Hints to open pages: "topic T is at sequence n". A lost hint loses nothing, pages re-read; so nothing here may fail.

Actions send them when they have committed, drivers a few times a second.
Topics are `run:<uuid>` and `cluster`; a topic's Channels group is the same with a dot for the colon.
"""

from typing import Any

import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from flexmarl.contracts.live import Nudge
from flexmarl.controlplane.common.brief_redis import SERVER

log = structlog.get_logger(__name__)
CLUSTER = "cluster"
RIGHTS = "rights"
"""Group of all sockets and streams, to which changes of rights are told."""


def run_topic(run_id: object) -> str:
    """Name the topic of a run."""
    return f"run:{run_id}"


def group_of(topic: str) -> str:
    """Name the Channels group of a topic."""
    return topic.replace(":", ".")


def message_of(topic: str, seq: int) -> dict[str, Any]:
    """Build the Channels message that a socket relays."""
    return {"type": "nudge", "body": Nudge(topic=topic, seq=seq).model_dump()}


def announce(topic: str, seq: int) -> None:
    """Tell open pages that a topic changed. Called outside a transaction or through `announce_on_commit`."""
    _send(group_of(topic), message_of(topic, seq))


def announce_rights(of: str) -> None:
    """Tell open sockets that the rights of a person or session may have changed. Called after the commit."""
    _send(RIGHTS, {"type": "rights", "of": of})


def _send(group: str, message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is None or SERVER.open:
        return
    try:
        async_to_sync(layer.group_send)(group, message)
    except Exception as error:  # a hint: whatever the broker's client raises, the commit stands and pages re-read
        SERVER.trip()
        log.warning("hint_not_sent", group=group, error=str(error))


def announce_on_commit(topic: str, seq: int) -> None:
    """Tell open pages after the transaction around has committed."""
    transaction.on_commit(lambda: announce(topic, seq))
