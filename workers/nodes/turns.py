"""Engines that give a shared device up or take it back, as nodes see to it: requests, and writes for replies.

Invariants: the registry names an engine for nothing before it is asked to sleep; each write tells the driver and ends
the command in one transaction.
"""

import time
from collections.abc import Callable

import msgspec
import psycopg

from flexmarl.contracts.commands import SleepEngine, WakeEngine
from flexmarl.contracts.events import EngineSlept, EngineWoke
from flexmarl.store.control import engines
from flexmarl.store.control.commands import Taken
from workers.nodes.child_client import ChildClient
from workers.rollout.engines.wire import SleepRequest, WakeRequest

Turn = SleepEngine | WakeEngine


def request_of(conn: psycopg.Connection, taken: Taken, order: Turn) -> msgspec.Struct:
    """Return what a child is asked, by the number of the command: one of before is refused."""
    if isinstance(order, SleepEngine):
        engines.leaves(conn, taken, order.lease_id)
        return SleepRequest(drain=True, order=taken.no)
    return WakeRequest(empty=True, order=taken.no)


async def perform(
    client: ChildClient, taken: Taken, order: Turn, request: msgspec.Struct
) -> Callable[[psycopg.Connection], None]:
    """Let the child do it; returns the write that makes it count. Raises ChildRefused, ChildUnreachable."""
    began, incarnation = time.monotonic(), client.child.incarnation
    event: EngineSlept | EngineWoke
    if isinstance(request, SleepRequest):
        freed = (await client.sleep(request)).bytes
        event = EngineSlept(
            lease_id=order.lease_id, incarnation=incarnation, bytes=freed, seconds=time.monotonic() - began,
            command_no=taken.no,
        )  # fmt: skip
    else:
        assert isinstance(request, WakeRequest)
        await client.wake(request)
        event = EngineWoke(
            lease_id=order.lease_id, incarnation=incarnation, seconds=time.monotonic() - began, command_no=taken.no
        )
    return lambda conn: engines.turned(conn, taken, event)
