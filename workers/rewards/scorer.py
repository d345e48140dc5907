"""Computes rewards, one task at a time each, many at once on one event loop.

Invariants. Every write names the task's token: of two workers with one task, one settles it. A try that fails is
followed by another one while it may help and tries are left; a task whose workers die at it has used its tries up as
well. A task ends as data in every case, with a result or with a reason, and no exception of a function reaches another.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
import psycopg
import structlog

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.reward import QueuedReward
from flexmarl.store.control import runs
from flexmarl.store.data import rewards
from flexmarl.store.data.rewards import TakenReward
from flexmarl.store.errors import StoreError
from workers.database import StorePool
from workers.external_access import ExternalAccess
from workers.rewards.base import Earned, Played, RewardFailed, RewardFunction
from workers.rewards.functions import checked, reward_function

log = structlog.get_logger(__name__)

TTL_S = 5.0
"""A task whose worker says nothing for this long may be taken by another one."""
EXTEND_EVERY_S = 1.0
AGAIN_FIRST_S = 0.25
AGAIN_LAST_S = 8.0
RUNS_KEPT = 8
"""Runs whose reward functions a worker keeps while nobody uses them."""

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    spec: QueuedReward
    function: RewardFunction
    users: int = 0


class Scorer:
    """One per process that computes rewards."""

    def __init__(self, pool: StorePool, access: ExternalAccess | None = None, holder: str = "") -> None:
        self._pool = pool
        self._access = access or ExternalAccess()
        self._holder = holder
        self._kept: dict[int, _Kept] = {}
        self._opening = asyncio.Lock()

    async def score(self, run_id: int, no: int) -> None:
        """Carry out one task; returns when it is settled, to be tried again, or no longer ours."""
        taken = await self._store(lambda conn: rewards.take(conn, run_id, no, TTL_S, self._holder))
        if taken is None:
            return
        work = asyncio.create_task(self._carry_out(taken))
        keep = asyncio.create_task(self._keep(taken, work))
        try:
            await work
        except asyncio.CancelledError:
            # Not ours any more, or the process ends: giving it back does nothing in the first case.
            with contextlib.suppress(psycopg.Error):
                await self._store(lambda conn: rewards.give_back(conn, taken))
        except (psycopg.Error, StoreError) as error:
            log.warning("reward not settled", run_id=run_id, task=no, error=str(error))
        finally:
            keep.cancel()

    async def close(self) -> None:
        """Drop every connection."""
        for kept in self._kept.values():
            await kept.function.close()
        self._kept.clear()

    async def _carry_out(self, taken: TakenReward) -> None:
        kept = await self._function(taken.run_id)
        kept.users += 1
        try:
            tries = kept.spec.max_tries
            if taken.takes > tries:
                reason = f"no result after {tries} tries; {taken.reason or 'the workers exited'}"
                await self._store(partial(rewards.settle, taken=taken, result="", reason=reason))
                return
            try:
                earned = await _earned(kept, msgspec.json.decode(taken.body, type=Played))
            except RewardFailed as failed:
                await self._failed(taken, failed, tries)
                return
            text = msgspec.json.encode(earned).decode()
            await self._store(partial(rewards.settle, taken=taken, result=text))
        finally:
            kept.users -= 1

    async def _failed(self, taken: TakenReward, failed: RewardFailed, tries: int) -> None:
        log.warning("reward failed", run_id=taken.run_id, task=taken.no, tried=taken.takes, reason=failed.reason)
        if failed.may_pass and taken.takes < tries:
            pause = min(AGAIN_LAST_S, AGAIN_FIRST_S * 2.0 ** (taken.takes - 1))
            await self._store(partial(rewards.try_again, taken=taken, reason=failed.reason, after_s=pause))
        else:
            reason = failed.reason + (f" (try {taken.takes} of {tries})" if failed.may_pass else "")
            await self._store(partial(rewards.settle, taken=taken, result="", reason=reason))

    async def _keep(self, taken: TakenReward, work: "asyncio.Task[None]") -> None:
        """Extend the task while it is worked on; stop once it is not ours any more."""
        while True:
            await asyncio.sleep(EXTEND_EVERY_S)
            try:
                extended = await self._store(lambda conn: rewards.extend(conn, taken, TTL_S))
            except psycopg.Error as error:
                log.warning("could not extend", run_id=taken.run_id, task=taken.no, error=str(error))
                continue
            if not extended:
                work.cancel()
                return

    async def _function(self, run_id: int) -> _Kept:
        async with self._opening:
            if run_id not in self._kept:
                stored = await self._store(lambda conn: runs.load_spec(conn, run_id))
                spec = ExperimentSpec.model_validate(stored).reward
                function = reward_function(spec, self._access)
                assert isinstance(spec, QueuedReward)
                self._kept[run_id] = _Kept(spec, function)
                await self._let_go(run_id)
        return self._kept[run_id]

    async def _let_go(self, newest: int) -> None:
        """Forget the functions that have not been used for longest."""
        idle = [run_id for run_id, kept in self._kept.items() if not kept.users and run_id != newest]
        for run_id in idle[: max(0, len(self._kept) - RUNS_KEPT)]:
            await self._kept.pop(run_id).function.close()

    async def _store(self, call: Callable[[psycopg.Connection], T]) -> T:
        """Run one store function on a pooled connection, off the event loop."""

        def work() -> T:
            with self._pool.connection() as conn:
                return call(conn)

        return await asyncio.to_thread(work)


async def _earned(kept: _Kept, played: Played) -> Earned:
    """Compute a reward. Raises RewardFailed."""
    try:
        return checked(await kept.function(played), played)
    except RewardFailed:
        raise
    except Exception as error:  # a reward function is foreign code: whatever it raises is this reward's failure
        raise RewardFailed(f"{type(error).__name__}: {error}", may_pass=False) from error
