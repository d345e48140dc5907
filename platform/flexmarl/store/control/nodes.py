"""Hosts and their devices, as they announce themselves.

Invariants: a node's newest incarnation owns its rows; an older process learns at its heartbeat that it was replaced.
Pools and cordons are an administrator's choice and survive a registration. A device that a node no longer announces is
`lost`, never deleted. A node is `gone` when whoever provided its host says that the host is: nothing of it runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from psycopg import Connection

from flexmarl.store.node_operations import both, for_nodes, own_device, own_node, own_registration, run_with_work

ALIVE_S = 10.0
"""A node that was silent for longer gets no new lease."""
NODES_IN_ORDER = """ordered AS MATERIALIZED (
    SELECT name FROM store.node WHERE name = ANY(%(names)s) ORDER BY name FOR NO KEY UPDATE)"""
"""Locks rows of nodes before they are written, so that two statements about many of them never wait for each other."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    name: str
    address: str
    """host:port of its command endpoint; empty of a node that nobody reaches, which hears of commands by itself."""
    incarnation: str
    version: str
    facts: dict[str, object] = field(default_factory=dict)
    peer_address: str = ""
    """host:port at which the nodes with tokens of its pool read contents; empty of one with the cluster key."""
    peer_key: str = ""
    """Bearer key that they show there."""


@dataclass(frozen=True, slots=True)
class NodePeer:
    """Another node with a token of the same pool, as it is read."""

    address: str
    key: str
    trained: bool
    """It has trained the run."""
    receives: bool
    """Its engines take the run's weights in."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    id: str
    kind: str
    """cpu | cuda"""
    ordinal: int
    name: str = ""
    memory_bytes: int = 0
    pool: str = "default"
    """Pool of a device that registers for the first time."""
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    id: str
    node: str
    kind: str
    ordinal: int
    pool: str
    facts: dict[str, object]

    @property
    def whole(self) -> bool:
        """Tell whether it is all of a processor's or GPU's share; two shares of one GPU are no two devices."""
        return self.facts.get("share", 1) == 1


@for_nodes(own_registration)
def register_node(conn: Connection, node: NodeFacts, devices: Sequence[DeviceFacts]) -> None:
    """Announce a node and exactly these devices, in one transaction."""
    with conn.transaction():
        conn.execute(
            """
            INSERT INTO store.node (name, address, incarnation, version, facts, peer_address, peer_key)
            VALUES (%s, %s, %s, %s, %s::jsonb, %s, %s)
            ON CONFLICT (name) DO UPDATE SET address = excluded.address, incarnation = excluded.incarnation,
              version = excluded.version, facts = excluded.facts, registered_at = clock_timestamp(),
              heartbeat_at = clock_timestamp(), peer_address = excluded.peer_address, peer_key = excluded.peer_key,
              state = CASE WHEN store.node.state = 'gone' THEN 'ready' ELSE store.node.state END
            """,
            [
                node.name, node.address, node.incarnation, node.version, _json(node.facts), node.peer_address,
                node.peer_key,
            ],
        )  # fmt: skip
        for device in devices:
            conn.execute(
                """
                INSERT INTO store.device (id, node, kind, ordinal, name, memory_bytes, pool, facts)
                VALUES (%s, %s, %s, %s, %s, %s, %s, %s::jsonb)
                ON CONFLICT (id) DO UPDATE SET node = excluded.node, kind = excluded.kind,
                  ordinal = excluded.ordinal, name = excluded.name, memory_bytes = excluded.memory_bytes,
                  facts = excluded.facts,
                  state = CASE WHEN store.device.state <> 'lost' THEN store.device.state
                               ELSE coalesce(nullif(store.device.state_before, ''), 'ready') END
                """,
                [
                    device.id, node.name, device.kind, device.ordinal, device.name, device.memory_bytes, device.pool,
                    _json(device.facts),
                ],
            )  # fmt: skip
        conn.execute(
            "UPDATE store.device SET state_before = state, state = 'lost' "
            "WHERE node = %s AND id <> ALL(%s) AND state <> 'lost'",
            [node.name, [device.id for device in devices]],
        )


def put_loads(conn: Connection, calls: Sequence[Mapping[str, Any]]) -> list[None]:
    """Do many calls of `put_load` in two statements; of two for one node the last one counts."""
    last = {(call["name"], call["incarnation"]): call for call in calls}
    with conn.transaction():
        rows = conn.execute(
            f"""
            WITH {NODES_IN_ORDER}
            UPDATE store.node n SET load = m.load::jsonb
            FROM unnest(%(names)s::text[], %(incarnations)s::text[], %(loads)s::text[]) AS m(name, incarnation, load)
            WHERE n.name = m.name AND n.incarnation = m.incarnation AND n.name IN (SELECT name FROM ordered)
            RETURNING n.name
            """.encode(),
            {
                "names": [name for name, _ in last],
                "incarnations": [incarnation for _, incarnation in last],
                "loads": [_json(call["load"]) for call in last.values()],
            },
        ).fetchall()
        own = {name for (name,) in rows}
        devices = [
            (device, name, _json(load))
            for (name, _), call in last.items()
            if name in own
            for device, load in call["devices"].items()
        ]
        if devices:
            conn.execute(
                """
                UPDATE store.device d SET load = m.load::jsonb
                FROM unnest(%s::text[], %s::text[], %s::text[]) AS m(id, node, load)
                WHERE d.id = m.id AND d.node = m.node
                """,
                [list(column) for column in zip(*devices, strict=True)],
            )
    return [None] * len(calls)


@for_nodes(own_node("name"), many=put_loads)
def put_load(
    conn: Connection, name: str, incarnation: str, load: dict[str, object], devices: dict[str, dict[str, object]]
) -> None:
    """Keep what the node's agent measured last, of the machine and of its devices."""
    put_loads(conn, [{"name": name, "incarnation": incarnation, "load": load, "devices": devices}])


@dataclass(frozen=True, slots=True)
class Supply:
    """What can serve runs at one moment: devices that are ready on nodes that live."""

    free: list[DeviceRow]
    """Those that a lease could have now, in a fixed order."""
    capacity: dict[str, int]
    """Pool -> its devices, leased ones included."""
    hosts: dict[str, list[int]]
    """Pool -> how many whole devices of one kind each host has of it, leased ones included."""
    engines: dict[str, frozenset[str]]
    """Node -> the rollout engines that it can start; a node that does not say is not among them."""
    leased: dict[str, DeviceRow]
    """Id -> device that a lease has now."""


def supply(conn: Connection) -> Supply:
    """Read which devices could serve, and which of them nobody holds."""
    rows = conn.execute(
        """
        SELECT NOT EXISTS (SELECT 1 FROM store.lease l WHERE l.device_id = d.id AND l.state <> 'ended'),
          (n.facts -> 'engines')::text,
          d.id, d.node, d.kind, d.ordinal, d.pool, d.facts::text
        FROM store.device d JOIN store.node n ON n.name = d.node
        WHERE d.state = 'ready' AND n.state = 'ready'
          AND n.heartbeat_at > clock_timestamp() - make_interval(secs => %s)
        ORDER BY d.kind DESC, d.node, d.ordinal
        """,
        [ALIVE_S],
    ).fetchall()
    usable = [(free, _device(*row)) for free, _, *row in rows]
    engines = {node: frozenset(orjson.loads(names)) for _, names, _, node, *_ in rows if names}
    capacity = dict(Counter(device.pool for _, device in usable))
    leased = {device.id: device for free, device in usable if not free}
    return Supply([device for free, device in usable if free], capacity, _hosts(usable), engines, leased)


def _hosts(usable: Sequence[tuple[bool, DeviceRow]]) -> dict[str, list[int]]:
    sizes = Counter((device.pool, device.node, device.kind) for _, device in usable if device.whole)
    found: dict[str, list[int]] = {device.pool: [] for _, device in usable}
    for (pool, _, _), count in sizes.items():
        found[pool].append(count)
    return found


@for_nodes(own_node("node"))
def devices_of(conn: Connection, node: str, within_s: float | None = None) -> list[DeviceRow]:
    """List a node's devices that exist, in a fixed order; none unless its agent was heard of within so many seconds."""
    rows = conn.execute(
        "SELECT id, node, kind, ordinal, pool, facts::text FROM store.device "
        "WHERE node = %(node)s AND state <> 'lost' AND (%(within)s::float8 IS NULL OR EXISTS (SELECT FROM store.node n "
        "WHERE n.name = %(node)s AND n.heartbeat_at >= now() - make_interval(secs => %(within)s))) "
        "ORDER BY kind DESC, ordinal",
        {"node": node, "within": within_s},
    ).fetchall()
    return [_device(*row) for row in rows]


@for_nodes(own_device("device_id"))
def device(conn: Connection, device_id: str) -> DeviceRow | None:
    """Read one device."""
    row = conn.execute(
        "SELECT id, node, kind, ordinal, pool, facts::text FROM store.device WHERE id = %s", [device_id]
    ).fetchone()
    return None if row is None else _device(*row)


def _device(identity: str, node: str, kind: str, ordinal: int, pool: str, facts: str) -> DeviceRow:
    return DeviceRow(identity, node, kind, ordinal, pool, orjson.loads(facts))


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def addresses_for(conn: Connection, run_id: int) -> list[str]:
    """List the endpoints of living nodes that may hold a run's weights: those that trained it last come first."""
    rows = conn.execute(
        """
        SELECT n.address FROM store.node n LEFT JOIN (
          SELECT d.node, max(l.granted_at) AS at FROM store.lease l JOIN store.device d ON d.id = l.device_id
          WHERE l.run_id = %s AND l.use = 'trainer' GROUP BY d.node
        ) t ON t.node = n.name
        WHERE n.heartbeat_at > clock_timestamp() - make_interval(secs => %s) AND n.address <> ''
        ORDER BY t.at DESC NULLS LAST, n.name
        """,
        [run_id, ALIVE_S],
    ).fetchall()
    return [address for (address,) in rows]


def receivers_of(conn: Connection, run_id: int) -> list[str]:
    """List the endpoints of living nodes whose engines take a run's weights in."""
    rows = conn.execute(
        """
        SELECT DISTINCT n.address FROM store.lease l JOIN store.device d ON d.id = l.device_id
        JOIN store.node n ON n.name = d.node
        WHERE l.run_id = %s AND l.use = 'engine' AND l.state = 'held' AND n.address <> ''
          AND n.heartbeat_at > clock_timestamp() - make_interval(secs => %s)
        ORDER BY n.address
        """,
        [run_id, ALIVE_S],
    ).fetchall()
    return [address for (address,) in rows]


@for_nodes(both(own_node("node"), run_with_work("run_id", or_none=True)))
def peers_of(conn: Connection, node: str, run_id: int) -> list[NodePeer]:
    """List the other living nodes with tokens of a node's pool: those that trained a run, if any, last come first."""
    rows = conn.execute(
        """
        SELECT n.peer_address, n.peer_key, t.at IS NOT NULL, coalesce(t.receives, false)
        FROM store.node n LEFT JOIN (
          SELECT d.node, max(l.granted_at) FILTER (WHERE l.use = 'trainer') AS at,
            bool_or(l.use = 'engine' AND l.state = 'held') AS receives
          FROM store.lease l JOIN store.device d ON d.id = l.device_id WHERE l.run_id = %(run)s GROUP BY d.node
        ) t ON t.node = n.name
        WHERE n.peer_address <> '' AND n.name <> %(node)s AND n.state <> 'gone'
          AND n.heartbeat_at > clock_timestamp() - make_interval(secs => %(alive)s)
          AND EXISTS (SELECT 1 FROM store.device o JOIN store.device d USING (pool)
                      WHERE o.node = n.name AND d.node = %(node)s)
        ORDER BY t.at DESC NULLS LAST, n.name
        """,
        {"run": run_id, "node": node, "alive": ALIVE_S},
    ).fetchall()
    return [NodePeer(*row) for row in rows]


def peer_addresses(conn: Connection, nodes: Sequence[str]) -> dict[str, str]:
    """Map those of some nodes that have registered to where others of their pool read them; empty: nowhere."""
    query = "SELECT name, peer_address FROM store.node WHERE name = ANY(%s) AND state <> 'gone' ORDER BY name"
    return dict(conn.execute(query, [list(nodes)]).fetchall())


def address_of(conn: Connection, node: str) -> str:
    """Return the endpoint of a node; empty where it is not registered."""
    row = conn.execute("SELECT address FROM store.node WHERE name = %s", [node]).fetchone()
    return str(row[0]) if row else ""


def keepers(conn: Connection, run_id: int) -> list[tuple[str, str]]:
    """List living nodes, with their endpoints, that can keep what nobody reads where it was made.

    Those with engines of the run come first, then each run has an order of its own.
    """
    rows = conn.execute(
        """
        SELECT n.name, n.address FROM store.node n
        WHERE n.heartbeat_at > clock_timestamp() - make_interval(secs => %s) AND n.address <> '' AND n.state <> 'gone'
        ORDER BY EXISTS (
          SELECT 1 FROM store.lease l JOIN store.device d ON d.id = l.device_id
          WHERE l.run_id = %s AND l.use = 'engine' AND l.state <> 'ended' AND d.node = n.name
        ) DESC, n.state <> 'ready', md5(%s::text || n.name)
        """,
        [ALIVE_S, run_id, run_id],
    ).fetchall()
    return [(str(name), str(address)) for name, address in rows]


def can_keep(conn: Connection) -> bool:
    """Tell whether any node is registered that others reach; it may be silent just now."""
    return (
        conn.execute("SELECT 1 FROM store.node WHERE address <> '' AND state <> 'gone' LIMIT 1").fetchone() is not None
    )
