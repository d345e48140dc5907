"""Ended episodes that wait for what they earned, from the side of whoever played them.

Invariants. An episode waits without a place to play: nobody else is kept from playing by a slow reward. What is asked
for is a row before anybody is told of it, and is told of again until it has ended, so neither a lost message nor a
worker that dies loses a reward. A reward that fails, or does not come in time, is the attempt's failure, with the
boundary `reward` and a reason; the episode is not played again for it. Many episodes that end together are one write.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import psycopg
import structlog

from flexmarl.contracts.specification.reward import QueuedReward
from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.store.control.commands import Taken
from flexmarl.store.data import rewards
from flexmarl.store.data.rewards import Given, RewardRequest
from workers.rewards.base import ACTOR, QUEUE, Earned, Played, TurnWords
from workers.rollout.episode import REWARD, EpisodeAttempt
from workers.rollout.speech import Seat

log = structlog.get_logger(__name__)

LOOK_FIRST_S = 0.02
LOOK_LAST_S = 0.5
"""Pauses between looks at what has ended, while nothing does."""

Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]
Push = Callable[[str, str, int, int], None]
"""Tells a queue's workers of (actor, run, number); may block."""


@dataclass(slots=True, eq=False)
class _Waiting:
    taken: Taken
    pool: str
    asked: RewardRequest
    future: "asyncio.Future[Given]"
    since: float = field(default_factory=time.monotonic)


class Rewards:
    """One per run and event loop."""

    def __init__(self, run_id: int, spec: QueuedReward, environment: str, store: Store, push: Push) -> None:
        self._run_id = run_id
        self._spec = spec
        self._environment = environment
        self._store = store
        self._push = push
        self._new: list[_Waiting] = []
        self._open: dict[int, _Waiting] = {}
        self._came = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._waits: list[float] = []
        """Seconds from asking to the end, of those that are not told yet."""

    async def given(self, taken: Taken, pool: str, attempt: EpisodeAttempt, seats: dict[str, Seat]) -> EpisodeAttempt:
        """Return a finished attempt with what it earned, or as failed, with the reason."""
        body = msgspec.json.encode(played_of(attempt, self._environment, seats)).decode()
        order = attempt.order
        asked = RewardRequest(order.draw, order.member, order.attempt, body)
        try:
            async with asyncio.timeout(self._spec.wait_s):
                given = await self._wait(_Waiting(taken, pool, asked, asyncio.get_running_loop().create_future()))
        except TimeoutError:
            return _failed(attempt, f"no result within {self._spec.wait_s:g} s")
        if given.reason:
            return _failed(attempt, given.reason)
        earned = msgspec.json.decode(given.result, type=Earned)
        outcome = attempt.outcome
        assert outcome is not None
        facts = {**outcome.facts, **earned.facts}
        return replace(
            attempt, outcome=replace(outcome, scores=earned.scores, team_score=earned.team_score, facts=facts)
        )

    async def close(self) -> None:
        """Stop looking, unless somebody waits: a play that goes on still gets its rewards, and it ends then."""
        waiting = any(not one.future.done() for one in (*self._new, *self._open.values()))
        if self._serving is not None and not waiting:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving

    async def _wait(self, waiting: _Waiting) -> Given:
        self._new.append(waiting)
        self._came.set()
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve(), name=f"rewards-{self._run_id}")
        return await waiting.future

    async def _serve(self) -> None:
        """Ask for what is new, look for what has ended, until nobody waits."""
        pause = LOOK_FIRST_S
        while self._new or self._open:
            self._came.clear()
            moved = bool(self._new)
            await self._ask()
            try:
                moved |= await self._look()
            except psycopg.Error as error:
                log.warning("rewards not read", run_id=self._run_id, error=str(error))
            pause = LOOK_FIRST_S if moved else min(LOOK_LAST_S, 1.5 * pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._came.wait()
        if waits := sorted(self._waits):
            middle, longest = waits[len(waits) // 2], waits[-1]
            times = {"middle_s": round(middle, 3), "longest_s": round(longest, 3)}
            log.info("rewards", run_id=self._run_id, given=len(waits), **times)
            self._waits.clear()

    async def _ask(self) -> None:
        """Write new tasks, those of one play together, and tell the workers of them."""
        new, self._new = self._new, []
        plays: dict[int, list[_Waiting]] = {}
        for one in new:
            if not one.future.done():
                plays.setdefault(one.taken.no, []).append(one)
        for some in plays.values():
            try:
                ask = partial(rewards.ask, taken=some[0].taken, tasks=[one.asked for one in some])
                numbers: list[int] = await self._store(ask)
            except Exception as error:  # it is the play's failure, and told to everybody who waits for it
                for one in some:
                    if not one.future.done():
                        one.future.set_exception(error)
                continue
            self._open.update(zip(numbers, some, strict=True))
            await self._tell(numbers)

    async def _look(self) -> bool:
        """Read what has ended and remind workers of what nobody took; tells whether anything had ended."""
        left = [no for no, one in self._open.items() if one.future.done()]
        if left:
            await self._store(partial(rewards.forget, run_id=self._run_id, numbers=left))
            for no in left:
                del self._open[no]
        if not self._open:
            return False
        ended: list[Given] = await self._store(partial(rewards.collect, run_id=self._run_id, numbers=list(self._open)))
        for given in ended:
            one = self._open.pop(given.no)
            if not one.future.done():
                one.future.set_result(given)
                self._waits.append(time.monotonic() - one.since)
        if self._open and not ended:
            await self._tell(await self._store(partial(rewards.due, run_id=self._run_id, numbers=list(self._open))))
        return bool(ended)

    async def _tell(self, numbers: list[int]) -> None:
        if not numbers:
            return
        queues = [(no, f"{QUEUE}.{self._open[no].pool}") for no in numbers]

        def tell() -> None:
            for no, queue in queues:
                self._push(queue, ACTOR, self._run_id, no)

        await asyncio.to_thread(tell)


def _failed(attempt: EpisodeAttempt, reason: str) -> EpisodeAttempt:
    named = f"{REWARD}: {reason}"
    log.warning("attempt failed", draw=attempt.order.draw, member=attempt.order.member, reason=named)
    return replace(attempt, status=EpisodeStatus.FAILED, reason=named, outcome=None)


def played_of(attempt: EpisodeAttempt, environment: str, seats: dict[str, Seat]) -> Played:
    """Write an attempt down in words."""
    outcome = attempt.outcome
    assert outcome is not None
    said = []
    for turn in attempt.turns:
        codec, reply = seats[turn.role].codec, turn.reply.choice.token_ids
        said.append(TurnWords(turn.role, turn.turn, codec.decode(turn.prompt), codec.decode(reply), len(reply)))
    return Played(
        attempt.order.draw, attempt.order.member, attempt.order.attempt, environment, attempt.task, said,
        outcome.scores, outcome.team_score, outcome.solved, outcome.facts,
    )  # fmt: skip
