"""One lane per child: its commands one after another, in the order of their numbers.

Invariants. The store chooses the next command (`take_next`), so a push that overtakes another changes nothing. A
command is taken only while its child answers, under a token that is extended as long as the child works. A child that
vanishes gives the command back; whether it is repeated or withdrawn is the core's decision.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import aiohttp
import psycopg
import structlog

from flexmarl.store import commands
from flexmarl.store.commands import Taken
from flexmarl.store.errors import EpochStale, LeaseLost, Refused, TokenLost
from flexmarl.store.leases import ChildEndpoint
from workers.errors import ChildRefused, ChildUnreachable
from workers.nodes.carrying_out import Commit, Prepared, perform, prepare
from workers.nodes.child_client import ChildClient

log = structlog.get_logger(__name__)
T = TypeVar("T")

TTL_S = 10.0
EXTEND_S = 2.0
AGAIN_S = 0.2
"""Pause after a child did not answer or the database failed."""
RETRYABLE = frozenset({"not_held", "not_bound", "other_accumulator", "state"})
"""Refusals that another state of the child mends; the core decides what follows."""


class Store(Protocol):
    """Runs a store function on a pooled connection, off the event loop."""

    def __call__(self, call: Callable[[psycopg.Connection], T], /) -> Awaitable[T]: ...


class Lane:
    """The commands of one child incarnation."""

    def __init__(self, child: ChildEndpoint, session: aiohttp.ClientSession, store: Store) -> None:
        self.child = child
        self._client = ChildClient(session, child)
        self._store = store
        self._wake = asyncio.Event()
        self._wake.set()
        self._log = log.bind(run_id=child.run_id, lease_id=child.lease_id, incarnation=child.incarnation)
        self._task = asyncio.create_task(self._run(), name=f"lane-{child.lease_id}")

    def wake(self) -> None:
        """Hint that there may be a command."""
        self._wake.set()

    async def stop(self) -> None:
        """End the lane; a command in work is given back."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while await self._one():
                    pass
            except (psycopg.Error, ChildUnreachable, LeaseLost) as error:
                self._log.warning("lane pauses", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(AGAIN_S)

    async def _one(self) -> bool:
        """Carry out the next command; False when there is none."""
        prepared = await self._store(self._take)
        if prepared is None:
            return False
        if isinstance(prepared, Taken):
            return True  # refused while it was prepared
        began = time.monotonic()
        try:
            commit = await self._with_extension(prepared)
            await self._store(commit)
        except (TokenLost, EpochStale) as lost:
            self._log.info("command given up", command=prepared.taken.no, reason=str(lost))
            return True
        except (ChildRefused, Refused) as refused:
            await self._refused(prepared.taken, refused)
            return True
        except (ChildUnreachable, LeaseLost, asyncio.CancelledError):
            await asyncio.shield(self._give_back(prepared.taken))
            raise
        self._log.debug("carried out", command=prepared.taken.no, seconds=round(time.monotonic() - began, 4))
        return True

    def _take(self, conn: psycopg.Connection) -> Prepared | Taken | None:
        """Take the next command and read what its request needs, in one visit to the store."""
        taken = commands.take_next(conn, self.child.lease_id, TTL_S)
        if taken is None:
            return None
        try:
            return prepare(conn, taken)
        except Refused as refused:
            commands.fail(conn, taken, refused.code, str(refused), retryable=False)
            return taken

    async def _with_extension(self, prepared: Prepared) -> Commit:
        """Wait for the child, holding the command as long as it takes. Raises TokenLost when it was withdrawn."""
        work = asyncio.ensure_future(perform(self._client, prepared))
        try:
            while True:
                done, _ = await asyncio.wait({work}, timeout=EXTEND_S)
                if done:
                    return work.result()
                await self._extend(prepared.taken)
        finally:
            work.cancel()

    async def _extend(self, taken: Taken) -> None:
        try:
            extended = await self._store(lambda conn: commands.extend(conn, taken, TTL_S))
        except psycopg.Error as error:
            self._log.warning("could not extend", command=taken.no, error=str(error))
            return
        if not extended.alive:
            raise TokenLost(taken.run_id, taken.no)

    async def _refused(self, taken: Taken, refused: ChildRefused | Refused) -> None:
        kind, detail = taken.command.kind, str(refused)
        self._log.warning("command failed", command=taken.no, kind=kind, code=refused.code, detail=detail)
        retryable = refused.code in RETRYABLE
        with contextlib.suppress(TokenLost):
            await self._store(lambda conn: commands.fail(conn, taken, refused.code, str(refused), retryable))

    async def _give_back(self, taken: Taken) -> None:
        with contextlib.suppress(psycopg.Error):
            await self._store(lambda conn: commands.reopen(conn, taken))
