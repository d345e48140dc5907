"""What a node agent says and reads about once a second: that it lives, and what there is to do on its machine.

Invariants: any number of nodes cost the same few statements. What a reply names is a hint about rows that the agent
then reads or writes under its holds; of a chore that it does not name there was nothing to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from flexmarl.contracts.events import DeviceUse
from flexmarl.store.control.leases import ChildEndpoint, Orphan
from flexmarl.store.control.nodes import NODES_IN_ORDER
from flexmarl.store.node_operations import for_nodes, own_node

CHECKPOINTS, DELETIONS, MODELS = "checkpoints", "deletions", "models"
"""Chores of a node: checkpoints to look after or to hold for copies, deleted runs to clear, models to hold."""


@dataclass(slots=True)
class BeatReply:
    """What a node agent is told at its heartbeat."""

    alive: bool
    """False: another process registered under the node's name."""
    children: list[ChildEndpoint] = field(default_factory=list)
    """Those that live, by lease."""
    waiting: list[int] = field(default_factory=list)
    """Leases of children with a command to carry out."""
    orphans: list[Orphan] = field(default_factory=list)
    """Leases to be released that nobody hosts any more."""
    processes: list[tuple[str, int]] = field(default_factory=list)
    """(device, process) of the children that run."""
    chores: list[str] = field(default_factory=list)
    """Names of what else there is to do."""
    at: float = 0.0
    """The database's time at the heartbeat, in seconds since 1970."""


def beats(conn: Connection, calls: Sequence[Mapping[str, Any]]) -> list[BeatReply]:
    """Do many calls of `beat` together."""
    names = sorted({call["node"] for call in calls})
    living = _living(conn, calls, names)
    times = {name: at for (name, _), at in living.items()}
    replies = {name: BeatReply(True, at=times.get(name, 0.0)) for name in names}
    _add_leases(conn, names, replies)
    if any(reply.children for reply in replies.values()):
        _add_waiting(conn, names, replies)
    _add_chores(conn, names, replies)
    return [
        replies[call["node"]] if (call["node"], call["incarnation"]) in living else BeatReply(False) for call in calls
    ]


@for_nodes(own_node("node"), many=beats)
def beat(conn: Connection, node: str, incarnation: str) -> BeatReply:
    """Show that a node lives, and read what there is to do on it."""
    return beats(conn, [{"node": node, "incarnation": incarnation}])[0]


def _living(conn: Connection, calls: Sequence[Mapping[str, Any]], names: list[str]) -> dict[tuple[str, str], float]:
    """Note the heartbeats; return those that count, (node, incarnation), with the database's time."""
    rows = conn.execute(
        f"""
        WITH {NODES_IN_ORDER}
        UPDATE store.node n SET heartbeat_at = clock_timestamp()
        FROM (SELECT DISTINCT * FROM unnest(%(nodes)s::text[], %(incarnations)s::text[]) AS c(name, incarnation)) c
        WHERE n.name = c.name AND n.incarnation = c.incarnation AND n.name IN (SELECT name FROM ordered)
        RETURNING n.name, n.incarnation, extract(epoch FROM n.heartbeat_at)::float8
        """.encode(),
        {
            "names": names,
            "nodes": [call["node"] for call in calls],
            "incarnations": [call["incarnation"] for call in calls],
        },
    ).fetchall()
    return {(name, incarnation): at for name, incarnation, at in rows}


def _add_leases(conn: Connection, names: list[str], replies: Mapping[str, BeatReply]) -> None:
    rows = conn.execute(
        """
        SELECT d.node, l.state = 'held' AND l.endpoint <> '',
          l.expires_at < clock_timestamp() AND l.leader IS NULL
            AND (l.state = 'releasing' OR r.run_id IS NULL
                 OR r.status IN ('completed', 'failed', 'cancelled', 'killed')),
          l.id, l.run_id, l.device_id, l.use, l.incarnation, l.endpoint, l.secret, l.rendezvous, l.pid, l.pid_started
        FROM store.lease l JOIN store.device d ON d.id = l.device_id
        LEFT JOIN store.run_state r ON r.run_id = l.run_id
        WHERE d.node = ANY(%s) AND l.state <> 'ended' ORDER BY l.id
        """,
        [names],
    ).fetchall()
    for node, serves, orphaned, lease, run, device, use, incarnation, url, secret, rendezvous, pid, started in rows:
        reply = replies[node]
        if serves:
            child = ChildEndpoint(lease, run, device, DeviceUse(use), incarnation, url, secret, rendezvous)
            reply.children.append(child)
        if orphaned:
            reply.orphans.append(Orphan(lease, run, pid, started))
        if pid is not None and incarnation:
            reply.processes.append((device, pid))
        if MODELS not in reply.chores:  # its run may name a model
            reply.chores.append(MODELS)


def _add_waiting(conn: Connection, names: list[str], replies: Mapping[str, BeatReply]) -> None:
    rows = conn.execute(
        """
        SELECT DISTINCT d.node, c.lease_id
        FROM store.lease l JOIN store.device d ON d.id = l.device_id
        JOIN store.command c ON c.lease_id = l.id AND c.route = 'node' AND c.status IN ('open', 'taken')
        WHERE d.node = ANY(%s) AND l.state = 'held' AND l.incarnation <> '' AND l.endpoint <> ''
          AND (c.status = 'open' OR c.deadline < clock_timestamp())
        """,
        [names],
    ).fetchall()
    for node, lease_id in rows:
        replies[node].waiting.append(lease_id)


def _add_chores(conn: Connection, names: list[str], replies: Mapping[str, BeatReply]) -> None:
    rows = conn.execute(
        f"""
        SELECT '{CHECKPOINTS}', node FROM store.checkpoint WHERE node = ANY(%(names)s) AND state <> 'removed'
        UNION
        SELECT '{CHECKPOINTS}', node FROM unnest(%(names)s) AS node WHERE EXISTS (
          SELECT 1 FROM store.lineage l JOIN store.run_state r USING (run_id)
          WHERE l.bound_at IS NULL AND r.finished_at IS NULL)
        UNION
        SELECT '{DELETIONS}', node FROM store.run_deletion, unnest(nodes) AS node
        WHERE ended_at IS NULL AND rows_gone_at IS NOT NULL AND node = ANY(%(names)s)
        UNION
        SELECT '{MODELS}', node FROM store.model WHERE state = 'done' AND node = ANY(%(names)s)
        """.encode(),
        {"names": names},
    ).fetchall()
    for chore, node in rows:
        if chore not in replies[node].chores:
            replies[node].chores.append(chore)
