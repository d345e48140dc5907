"""What nodes without the database's password do through the control plane: functions of the store, by name.

A function that is declared here runs on its connection as ever. Where it is handed a `Carrier` instead, its name and
arguments go to the control plane, which runs the very same function on a connection of its own and sends the reply, so
that workers say one thing on either road. What is not declared cannot be asked for: a carrier knows no SQL.

Invariants: an operation is one call of one function, hence one transaction, or none where its answer was lost in time.
Each names who may ask for it: a node reaches its own devices, leases, children and reports, and runs that have work for
it. What a token of a command opens is decided by the command's row, never by what the caller says of it.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from psycopg import Connection

P = ParamSpec("P")
R = TypeVar("R")

LEAST_KEY = 32
"""Characters of what a node lets others of its pool read it with."""
_HOST_AND_PORT = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")

PLACE = "node:"
"""Begins the place of every process of such a node, so that none takes over what another node's held."""


LATEST = 4e9
"""Seconds since the epoch; no node plans further."""


@dataclass(frozen=True, slots=True)
class NodeCaller:
    """Who asks, as the token says."""

    node: str
    pool: str
    """Pool of its devices, and the one whose episodes and rewards it may take."""

    @property
    def queues(self) -> list[str]:
        """Queues of its rollout and reward workers."""
        return [f"rollout.{self.pool}", f"reward.{self.pool}"]


class Authority(Protocol):
    """Tells whether a caller may ask for an operation with these arguments."""

    def __call__(self, conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any], /) -> bool: ...


@dataclass(frozen=True, slots=True)
class NodeOperation:
    """A function of the store that nodes may ask for."""

    name: str
    """Module and function, such as `commands.take`."""
    function: Callable[..., Any]
    may: Authority
    given: frozenset[str] = frozenset()
    """Parameters that the control plane fills in; a node does not say them."""
    many: "Many | None" = None
    """Does many calls in as many statements as one, if there is a way to."""

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a call says, by the names of the parameters."""
        bound = inspect.signature(self.function).bind(None, *args, **kwargs)
        named = list(bound.arguments.items())[1:]
        return {name: value for name, value in named if name not in self.given}


Many = Callable[[Connection, Sequence[Mapping[str, Any]]], Sequence[Any]]
"""Arguments of each call, by the names of the parameters, to the reply of each, in order."""


class Carrier:
    """Stands in the place of a connection, and carries operations to where there is one."""

    def carry(self, operation: NodeOperation, arguments: dict[str, Any]) -> Any:
        """Have an operation done elsewhere; return its reply. Raises what the function raises, or OperationalError."""
        raise NotImplementedError


OPERATIONS: dict[str, NodeOperation] = {}
"""All of them, by name. Complete once the modules of the store that declare any are loaded."""


def for_nodes(
    may: Authority, *, given: Sequence[str] = (), many: Many | None = None
) -> Callable[[Callable[Concatenate[Connection, P], R]], Callable[Concatenate[Connection, P], R]]:
    """Declare a function of the store as an operation of nodes.

    With `many`, calls of different nodes may be done together, all or none; `may` must then ask no statement.
    """

    def declare(function: Callable[Concatenate[Connection, P], R]) -> Callable[Concatenate[Connection, P], R]:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        operation = OPERATIONS[name] = NodeOperation(name, function, may, frozenset(given), many)

        @wraps(function)
        def run(conn: Connection, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if isinstance(conn, Carrier):
                reply: R = conn.carry(operation, operation.arguments(args, kwargs))
                return reply
            return function(conn, *args, **kwargs)

        return run

    return declare


# Authorities -------------------------------------------------------------------------------------------------------


def _said(arguments: Mapping[str, Any], path: str) -> Any:
    """Return an argument, or a member of one: `hosting.lease_id`."""
    name, *members = path.split(".")
    found = arguments.get(name)
    for member in members:
        found = getattr(found, member)
    return found


def _finds(conn: Connection, query: str, **values: Any) -> bool:
    return conn.execute(query.encode(), values).fetchone() is not None


def anyone(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
    """Allow every node: the reply is no secret, or its key is one that only who was given it can name."""
    return True


def both(first: Authority, second: Authority) -> Authority:
    """Ask for two authorities."""
    return lambda conn, caller, arguments: first(conn, caller, arguments) and second(conn, caller, arguments)


def own_node(path: str) -> Authority:
    """Allow what names the caller's node."""
    return lambda conn, caller, arguments: _said(arguments, path) == caller.node


def own_job(path: str) -> Authority:
    """Allow what names the job of the caller's host, which has not ended."""
    query = "SELECT 1 FROM store.host_job WHERE id = %(id)s AND node = %(node)s AND ended_at IS NULL"
    return lambda conn, caller, arguments: _finds(conn, query, id=_said(arguments, path), node=caller.node)


def moment(path: str) -> Authority:
    """Allow a time in seconds since the epoch that a calendar has, or none."""

    def may(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
        told = _said(arguments, path)
        return told is None or 0.0 <= told < LATEST

    return may


def own_device(path: str) -> Authority:
    """Allow what names a device of the caller's node."""
    query = "SELECT 1 FROM store.device WHERE id = %(id)s AND node = %(node)s"
    return lambda conn, caller, arguments: _finds(conn, query, id=_said(arguments, path), node=caller.node)


def own_lease(path: str) -> Authority:
    """Allow what names a lease of a device of the caller's node."""
    return lambda conn, caller, arguments: _own_leases(conn, caller, {(_said(arguments, path), None)})


def own_lease_of_run(lease: str, run: str) -> Authority:
    """Allow what names a lease of a device of the caller's node, and the run that it is for."""
    return lambda conn, caller, arguments: _own_leases(conn, caller, {(_said(arguments, lease), _said(arguments, run))})


def own_leases(name: str) -> Authority:
    """Allow what names leases of devices of the caller's node and their runs, one per item of an argument."""
    return lambda conn, caller, arguments: _own_leases(
        conn, caller, {(one.lease_id, one.run_id) for one in arguments[name]}
    )


def _own_leases(conn: Connection, caller: NodeCaller, named: set[tuple[int, int | None]]) -> bool:
    row = conn.execute(
        """
        SELECT count(*) FROM unnest(%s::bigint[], %s::bigint[]) AS n(id, run_id)
        JOIN store.lease l ON l.id = n.id AND l.run_id = coalesce(n.run_id, l.run_id)
        JOIN store.device d ON d.id = l.device_id WHERE d.node = %s
        """,
        [[lease for lease, _ in named], [run for _, run in named], caller.node],
    ).fetchone()
    return row is not None and row[0] == len(named)


_HAS_WORK = """
    EXISTS (SELECT 1 FROM store.lease l JOIN store.device d ON d.id = l.device_id
            WHERE l.run_id = %(run)s AND d.node = %(node)s)
    OR EXISTS (SELECT 1 FROM store.command WHERE run_id = %(run)s AND queue = ANY(%(queues)s))"""


NO_RUN = 0
"""Stands for a run where none is meant."""


def run_with_work(path: str, or_none: bool = False) -> Authority:
    """Allow what names a run that leases devices of the caller's node, or plays in its pool; `or_none`: or no run."""

    def may(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
        run_id = _said(arguments, path)
        return (or_none and run_id == NO_RUN) or _has_work(conn, caller, run_id)

    return may


def _has_work(conn: Connection, caller: NodeCaller, run_id: Any) -> bool:
    return _finds(conn, f"SELECT 1 WHERE {_HAS_WORK}", run=run_id, node=caller.node, queues=caller.queues)


def trains(conn: Connection, caller: NodeCaller, run_id: int) -> bool:
    """Tell whether a run leases devices of the caller's node for trainers: it may send contents of that run."""
    query = """
        SELECT 1 FROM store.lease l JOIN store.device d ON d.id = l.device_id
        WHERE l.run_id = %(run)s AND l.use = 'trainer' AND l.state <> 'ended' AND d.node = %(node)s"""
    return _finds(conn, query, run=run_id, node=caller.node)


def sessions_with_work(path: str) -> Authority:
    """Allow what names a session, or a list of them, of runs that have work for the caller. Their ids are no secret:
    who reads a run reads them."""
    foreign = f"""
        SELECT 1 FROM store.program_session s
        WHERE s.id = ANY(%(sessions)s::uuid[]) AND NOT ({_HAS_WORK.replace("%(run)s", "s.run_id")})"""

    def may(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
        found = _said(arguments, path)
        named = [getattr(one, "id", one) for one in (found if isinstance(found, Sequence) else [found])]
        return not _finds(conn, foreign, sessions=named, node=caller.node, queues=caller.queues)

    return may


def run_of_lease(path: str) -> Authority:
    """Allow what names a lease, of whatever node, of a run that has work for the caller."""

    def may(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
        row = conn.execute("SELECT run_id FROM store.lease WHERE id = %s", [_said(arguments, path)]).fetchone()
        return row is not None and _has_work(conn, caller, row[0])

    return may


def _own_commands(conn: Connection, caller: NodeCaller, named: set[tuple[int, int]]) -> bool:
    row = conn.execute(
        """
        SELECT count(*) FROM store.command c
        JOIN unnest(%(runs)s::bigint[], %(nos)s::bigint[]) AS n(run_id, no) ON n.run_id = c.run_id AND n.no = c.no
        LEFT JOIN store.lease l ON l.id = c.lease_id LEFT JOIN store.device d ON d.id = l.device_id
        WHERE d.node = %(node)s OR c.queue = ANY(%(queues)s)
          OR c.queue IN (SELECT 'device.' || id FROM store.device WHERE node = %(node)s)
        """,
        {
            "runs": [run for run, _ in named], "nos": [no for _, no in named], "node": caller.node,
            "queues": caller.queues,
        },
    ).fetchone()  # fmt: skip
    return row is not None and row[0] == len(named)


def own_command(run: str, no: str) -> Authority:
    """Allow what names a command for the caller: of its devices, its children, or its pool."""
    return lambda conn, caller, arguments: _own_commands(conn, caller, {(arguments[run], arguments[no])})


def taken_command(name: str) -> Authority:
    """Allow what is done under a hold on a command for the caller; whether it holds is the function's to say."""

    def may(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
        taken = arguments[name]
        return _own_commands(conn, caller, {(taken.run_id, taken.no)})

    return may


def taken_commands(name: str) -> Authority:
    """Allow what is done under holds on commands for the caller."""

    def may(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
        return _own_commands(conn, caller, {(taken.run_id, taken.no) for taken in arguments[name]})

    return may


def own_place(path: str) -> Authority:
    """Allow a holder's name that is empty or begins with the caller's own place."""

    def may(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
        holder = _said(arguments, path) or ""
        return not holder or holder.startswith((f"{PLACE}{caller.node}/", "lane:"))

    return may


def own_registration(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
    """Allow a node to register itself, read by its pool alone, with devices of its pool that no other has."""
    node, devices = arguments["node"], arguments["devices"]
    if node.name != caller.node or node.address or any(device.pool != caller.pool for device in devices):
        return False
    if node.peer_address and not (_HOST_AND_PORT.fullmatch(node.peer_address) and len(node.peer_key) >= LEAST_KEY):
        return False
    taken = "SELECT 1 FROM store.device WHERE id = ANY(%(ids)s) AND node <> %(node)s"
    return not _finds(conn, taken, ids=[device.id for device in devices], node=caller.node)


def own_checkpoint(path: str) -> Authority:
    """Allow what names a checkpoint that lies on the caller's node."""
    query = "SELECT 1 FROM store.checkpoint WHERE run_id = %(run)s AND step = %(step)s AND node = %(node)s"

    def may(conn: Connection, caller: NodeCaller, arguments: Mapping[str, Any]) -> bool:
        folder = _said(arguments, path)
        return _finds(conn, query, run=folder.run_id, step=folder.step, node=caller.node)

    return may
