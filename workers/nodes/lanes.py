"""One lane per child: its commands one after another, in the order of their numbers.

Invariants. The store chooses the next command (`take_next`), so a push that overtakes another changes nothing. The
child gets one request at a time, in that order, and results are committed in that order; only taking the next and
committing the former overlap with its work. Tokens are extended as long as the child works. A child that vanishes gives
the commands back; whether they are repeated or withdrawn is the core's decision.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import aiohttp
import msgspec
import psycopg
import structlog

from flexmarl.store.control import commands
from flexmarl.store.control.commands import ClaimStatus, Taken
from flexmarl.store.control.leases import ChildEndpoint
from flexmarl.store.data import ready_commands
from flexmarl.store.errors import EpochStale, LeaseLost, Refused, TokenLost
from workers.errors import ChildRefused, ChildUnreachable
from workers.nodes.carrying_out import Commit, Prepared, Publish, perform, prepare
from workers.nodes.child_client import ChildClient
from workers.nodes.demonstrations import with_demonstrations
from workers.training.wire import BindRequest

log = structlog.get_logger(__name__)
T = TypeVar("T")

TTL_S = 10.0
EXTEND_S = 2.0
AGAIN_S = 0.2
AGAIN_AT_MOST_S = 2.0
"""Pauses after a child did not answer or the database failed; each is twice the one before."""
RETRYABLE = frozenset(
    {
        "not_held",
        "not_bound",
        "other_accumulator",
        "state",
        "state_full",
        "out_of_memory",
        "asleep",
        "gang_incomplete",
        "rank_lost",
        "checkpoint_leaving",
        "origin_unchecked",
        "upload_quota",
        "upload_unavailable",
    }
)
"""Refusals that another state of the child mends; the core decides what follows."""
UNREAD = frozenset({"state", "state_missing", "state_corrupt"})
"""Refusals of a child that found something missing or damaged."""


class StoreRunner(Protocol):
    """Runs a store function on a pooled connection, off the event loop."""

    def __call__(self, call: Callable[[psycopg.Connection], T], /) -> Awaitable[T]: ...


class Bring(Protocol):
    """Makes what a run's request names lie on this node, anew where it may be damaged; says whether anything came."""

    def __call__(self, run_id: int, request: msgspec.Struct, damaged: bool = False, /) -> Awaitable[bool]: ...


class CommandLane:
    """The commands of one child incarnation."""

    def __init__(
        self, child: ChildEndpoint, session: aiohttp.ClientSession, store: StoreRunner, bring: Bring, publish: Publish
    ) -> None:
        self.child = child
        self._publish = publish
        self._bring = bring
        self._client = ChildClient(session, child)
        self._store = store
        self._wake = asyncio.Event()
        self._wake.set()
        self._ahead: asyncio.Task[Prepared | None] | None = None
        """Takes the command behind the one that the child works on."""
        self._early = False
        """What was behind it could not be read yet."""
        self._holder = f"lane:{secrets.token_hex(8)}"
        """Under this name a command is taken anew whose number a failing database never told."""
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
        pause_s = 0.0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._drain()
                pause_s = 0.0
            except (psycopg.Error, ChildUnreachable, LeaseLost) as error:
                if not pause_s:  # once per outage: a dead child is asked until its successor replaces this lane
                    self._log.warning("lane pauses", error=f"{type(error).__name__}: {error}")
                pause_s = min(max(2 * pause_s, AGAIN_S), AGAIN_AT_MOST_S)
                await asyncio.sleep(pause_s)

    async def _drain(self) -> None:
        """Carry out commands until none is left.

        A pipeline of three: while the child works on one, the next is taken and read, if there is one or as soon as a
        hint says so, and the former is committed.
        """
        last = 0
        self._ahead = self._begin_next(last)
        committing = asyncio.create_task(asyncio.sleep(0))
        try:
            while self._ahead is not None or (self._wake.is_set() and not self._early):
                self._ahead = self._ahead or self._begin_next(last)
                prepared = await self._ahead
                self._ahead = None
                if prepared is None:
                    continue
                last = prepared.taken.no
                if prepared.more:
                    self._ahead = self._begin_next(last)
                outcome = await self._worked(prepared)
                await committing
                committing = asyncio.create_task(self._settle(prepared, outcome))
            await committing
            if self._early:
                self._early = False
                self._wake.set()  # what could not be read too early is read again, behind the commit
        except (psycopg.Error, ChildUnreachable, LeaseLost, asyncio.CancelledError):
            await asyncio.shield(self._abandon(committing))
            raise

    def _begin_next(self, after: int) -> "asyncio.Task[Prepared | None]":
        self._wake.clear()
        return asyncio.create_task(self._next(after))

    async def _next(self, after: int) -> Prepared | None:
        """Take the next command and read what its request needs, in one visit to the store."""
        while isinstance(found := await self._store(partial(self._take, after=after)), Taken):
            if after:
                self._early = True
                return None
        return found

    def _take(self, conn: psycopg.Connection, after: int) -> Prepared | Taken | None:
        """Return a bare Taken for a command whose rows are not there: failed, or given back when read ahead."""
        ready = ready_commands.take_next(conn, self.child.lease_id, TTL_S, after, self._holder)
        if ready is None:
            return None
        taken = ready.taken
        try:
            return replace(prepare(conn, taken, ready.batch), more=ready.more)
        except Refused as refused:
            if after:
                commands.reopen(conn, taken)
            else:
                commands.fail(conn, taken, refused.code, str(refused), refused.code in RETRYABLE)
            return taken

    async def _worked(self, prepared: Prepared) -> Commit | ChildRefused | None:
        """Wait for the child, holding this command and the next as long as it takes; None when it was withdrawn.

        Raises ChildUnreachable after giving the command back.
        """
        work = asyncio.ensure_future(self._performed(prepared))
        hint = asyncio.ensure_future(self._wake.wait())
        try:
            while True:
                waits = {work} if self._ahead is not None else {work, hint}
                done, _ = await asyncio.wait(waits, timeout=EXTEND_S, return_when=asyncio.FIRST_COMPLETED)
                if work in done:
                    return work.result()
                if hint in done:
                    self._ahead = self._begin_next(prepared.taken.no)
                    continue
                if not await self._extended(prepared.taken):
                    return None
                ahead = self._ahead
                following = ahead.result() if ahead and ahead.done() and not ahead.cancelled() else None
                if following is not None:
                    await self._extended(following.taken)
        except ChildRefused as refused:
            return refused
        except (ChildUnreachable, asyncio.CancelledError) as lost:
            reason = str(lost) or "this life of the child is over"
            self._log.info("command given back", command=prepared.taken.no, reason=reason)
            await asyncio.shield(self._give_back(prepared.taken))
            raise
        finally:
            work.cancel()
            hint.cancel()

    async def _performed(self, prepared: Prepared) -> Commit:
        run_id, request = prepared.taken.run_id, prepared.request
        if isinstance(request, BindRequest) and request.makes_first:
            try:
                shown = await self._store(lambda conn: with_demonstrations(conn, run_id, request))
            except psycopg.Error as error:
                raise ChildUnreachable(f"the rows of its warm-up were not read: {error}") from error
            prepared = replace(prepared, request=shown)
        await self._bring(prepared.taken.run_id, prepared.request)
        try:
            return await perform(self._client, prepared, self._publish)
        except ChildRefused as refused:
            if refused.code not in UNREAD or not await self._bring(prepared.taken.run_id, prepared.request, True):
                raise
        return await perform(self._client, prepared, self._publish)

    async def _extended(self, taken: Taken) -> bool:
        try:
            [standing] = await self._store(lambda conn: commands.extend(conn, [taken], TTL_S))
            return standing is not ClaimStatus.GONE
        except psycopg.Error as error:
            self._log.warning("could not extend", command=taken.no, error=str(error))
            return True

    async def _settle(self, prepared: Prepared, outcome: Commit | ChildRefused | None) -> None:
        """Write what the child's answer means. Raises psycopg's errors and LeaseLost after giving the command back."""
        taken = prepared.taken
        try:
            if outcome is None:
                self._log.info("command withdrawn", command=taken.no)
            elif isinstance(outcome, ChildRefused):
                await self._refused(taken, outcome)
            else:
                await self._store(outcome)
        except (TokenLost, EpochStale) as lost:
            self._log.info("command given up", command=taken.no, reason=str(lost))
        except Refused as refused:
            await self._refused(taken, refused)
        except (psycopg.Error, LeaseLost):
            await self._give_back(taken)
            raise

    async def _abandon(self, committing: "asyncio.Task[None]") -> None:
        """Let what is being written finish, and give back what was taken ahead."""
        await asyncio.gather(committing, return_exceptions=True)
        if self._ahead is not None:
            [taken] = await asyncio.gather(self._ahead, return_exceptions=True)
            if isinstance(taken, Prepared):
                await self._give_back(taken.taken)

    async def _refused(self, taken: Taken, refused: ChildRefused | Refused) -> None:
        kind, detail = taken.command.kind, str(refused)
        self._log.warning("command failed", command=taken.no, kind=kind, code=refused.code, detail=detail)
        retryable = refused.code in RETRYABLE
        with contextlib.suppress(TokenLost):
            await self._store(lambda conn: commands.fail(conn, taken, refused.code, str(refused), retryable))

    async def _give_back(self, taken: Taken) -> None:
        with contextlib.suppress(psycopg.Error):
            await self._store(lambda conn: commands.reopen(conn, taken))
