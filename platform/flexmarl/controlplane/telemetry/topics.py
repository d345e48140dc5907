"""Which topics there are, who may listen to them, and their newest sequence. Sockets and event streams ask here."""

from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs

MAX_TOPICS = 32
"""Topics of one socket or stream."""


def sequence_of(actor: Actor, topic: str) -> int | None:
    """Return a topic's newest sequence; None when there is no such topic for the caller."""
    if topic == live.CLUSTER:
        return 0 if actor.may(Scope.CLUSTER_READ) else None
    kind, _, identity = topic.partition(":")
    if kind != "run":
        return None
    try:
        run = runs.find_run(actor, identity)
    except NotFound:
        return None
    return run.state.seq if topic == live.run_topic(run.id) else None
