"""Commands taken with what carrying them out needs of the store: one visit for both, which is a request less where the
store is asked over HTTP.
"""

from dataclasses import dataclass

from psycopg import Connection

from flexmarl.contracts.commands import Accumulate, PlayGroups
from flexmarl.store.control import commands
from flexmarl.store.control.commands import Taken
from flexmarl.store.data import groups, micro_batches
from flexmarl.store.data.micro_batches import MicroBatch
from flexmarl.store.errors import Refused
from flexmarl.store.node_operations import both, for_nodes, own_command, own_lease, own_place


@dataclass(frozen=True, slots=True)
class ReadyCommand:
    """A taken command, with the rows that it accumulates."""

    taken: Taken
    batch: MicroBatch | None = None
    """None: it needs none, or they cannot be had whole, which who reads them is told."""
    more: bool = False
    """Another command of the child was open behind it."""


@dataclass(frozen=True, slots=True)
class ReadyPlay:
    """A taken command of a rollout worker."""

    taken: Taken
    settled: dict[int, set[int]]
    """Members of the draws that it orders which have their rows already; a draw without any is left out."""


@for_nodes(both(own_command("run_id", "no"), own_place("holder")))
def take(conn: Connection, run_id: int, no: int, ttl_s: float, holder: str = "") -> ReadyPlay | None:
    """Take as `commands.take` does, and read what the groups that are ordered have already."""
    taken = commands.take(conn, run_id, no, ttl_s, holder)
    if taken is None:
        return None
    draws = [group.draw for group in taken.command.groups] if isinstance(taken.command, PlayGroups) else []
    return ReadyPlay(taken, groups.settled_members(conn, run_id, draws) if draws else {})


@for_nodes(both(own_lease("lease_id"), own_place("holder")))
def take_next(conn: Connection, lease_id: int, ttl_s: float, after: int = 0, holder: str = "") -> ReadyCommand | None:
    """Take as `commands.take_next` does, and read the rows of a micro-batch that is to be accumulated."""
    found = commands.take_next(conn, lease_id, ttl_s, after, holder)
    if found is None:
        return None
    taken, order = found.taken, found.taken.command
    if not isinstance(order, Accumulate):
        return ReadyCommand(taken, more=found.more)
    try:
        batch = micro_batches.read(conn, taken.run_id, order.policy, order.micro_batch)
    except Refused:
        batch = None  # it stays taken, and whoever reads its rows is told what is missing
    return ReadyCommand(taken, batch, found.more)
