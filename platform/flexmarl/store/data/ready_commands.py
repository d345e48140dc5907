"""Commands of a child taken with what its request needs of the store: one visit for both, which is a request less where
the store is asked over HTTP.
"""

from dataclasses import dataclass

from psycopg import Connection

from flexmarl.contracts.commands import Accumulate
from flexmarl.store.control import commands
from flexmarl.store.control.commands import Taken
from flexmarl.store.data import micro_batches
from flexmarl.store.data.micro_batches import MicroBatch
from flexmarl.store.errors import Refused
from flexmarl.store.node_operations import both, for_nodes, own_lease, own_place


@dataclass(frozen=True, slots=True)
class ReadyCommand:
    """A taken command, with the rows that it accumulates."""

    taken: Taken
    batch: MicroBatch | None = None
    """None: it needs none, or they cannot be had whole, which who reads them is told."""


@for_nodes(both(own_lease("lease_id"), own_place("holder")))
def take_next(conn: Connection, lease_id: int, ttl_s: float, after: int = 0, holder: str = "") -> ReadyCommand | None:
    """Take as `commands.take_next` does, and read the rows of a micro-batch that is to be accumulated."""
    taken = commands.take_next(conn, lease_id, ttl_s, after, holder)
    if taken is None:
        return None
    order = taken.command
    if not isinstance(order, Accumulate):
        return ReadyCommand(taken)
    try:
        return ReadyCommand(taken, micro_batches.read(conn, taken.run_id, order.policy, order.micro_batch))
    except Refused:
        return ReadyCommand(taken)  # it stays taken, and whoever reads its rows is told what is missing
