"""Which topics there are, who may listen to them, and their newest sequence. Sockets and event streams ask here."""

from uuid import UUID

from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs

MAX_TOPICS = 32
"""Topics of one socket or stream."""


def is_topic(topic: str) -> bool:
    """Tell whether a text names a topic, whoever may listen to it."""
    kind, _, identity = topic.partition(":")
    try:
        return topic == live.CLUSTER or (kind == "run" and topic == live.run_topic(UUID(identity)))
    except ValueError:
        return False


def by_id(actor: Actor, topic: str) -> str:
    """Return a topic by the id of its run where it names the run's key; any other as it stands."""
    kind, _, key = topic.partition(":")
    if kind != "run" or not key or is_topic(topic):
        return topic
    try:
        return live.run_topic(runs.find_run(actor, key).id)
    except NotFound:
        return topic


def sequence_of(actor: Actor, topic: str) -> int | None:
    """Return a topic's newest sequence; None when there is no such topic for the caller."""
    if topic == live.CLUSTER:
        return 0 if actor.may(Scope.CLUSTER_READ) else None
    if not is_topic(topic):
        return None
    try:
        return runs.find_run(actor, topic.partition(":")[2]).state.seq
    except NotFound:
        return None
