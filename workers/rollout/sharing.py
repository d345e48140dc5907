"""What a run exchanges with other installations: its settled groups go out in words, others' come in as members.

Invariants. Neither playing nor training ever waits for the exchange: what goes out and what comes in is in bounded
memory, and one task of the run does all that is asked of the service. Where that is lost, slow or refuses, places of
others are played by the run's own engines. What comes in is used once in a run, after its score is known here.
"""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import psycopg
import structlog

from flexmarl.algorithms.selection import max_variance
from flexmarl.contracts.shared_rollouts import (
    MAX_BODY,
    MAX_TURNS,
    PublishedRollout,
    SharedRollout,
    SharedTurn,
    problem_of,
    task_digest,
)
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus
from flexmarl.store.data.groups import EpisodeRow, SettledGroup
from flexmarl.store.telemetry.sharing_reports import SharingReport
from workers.exchange.access import ExchangeAccess
from workers.exchange.client import ExchangeClient, ExchangeError, ExchangeFailure
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder
from workers.rollout.reciting import recite
from workers.rollout.recorder import SHARED
from workers.rollout.shared_pool import SharedPool
from workers.rollout.speech import Seat
from workers.rollout.stages import Stage, begin

log = structlog.get_logger(__name__)

WAITING = 2048
"""Rollouts that wait to be published; the oldest are left out."""
POSTED = 64
POLL_S = 2.0
LAST_POLL_S = 60.0
READS = 8
"""Answers that are read in one go."""
TRIED = 2
"""Rollouts that are scored for each place, of which those are chosen whose scores differ most."""
TELL_S = 20.0
"""A report is repeated after so long, so that pages know that somebody still tells."""
CONNECTED = "connected"

Claim = Callable[[Sequence[str]], Awaitable[list[str]]]
Put = Callable[[SharingReport], Awaitable[None]]


@dataclass(slots=True)
class _Counts:
    published: int = 0
    received: int = 0
    used: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    state: str = CONNECTED
    reason: str = ""

    def report(self) -> SharingReport:
        return SharingReport(
            self.state, self.reason, self.published, self.received, self.used, dict(sorted(self.refused.items()))
        )


class _Teller:
    """Stores a report when it is news, and from time to time."""

    def __init__(self, put: Put) -> None:
        self._put, self._told, self._again_at = put, SharingReport("", "", 0, 0, 0), 0.0

    async def tell(self, report: SharingReport) -> None:
        if report == self._told and time.monotonic() < self._again_at:
            return
        try:
            await self._put(report)
            self._told, self._again_at = report, time.monotonic() + TELL_S
        except psycopg.Error as error:
            log.warning("could not tell of the exchange", error=str(error))


class Sharing:
    """The exchange of one run in one rollout worker, from its making until `stop`."""

    def __init__(self, spec: ExperimentSpec, access: ExchangeAccess, claim: Claim, put: Put) -> None:
        self._options, self._environment = spec.sampling.sharing, spec.environment
        self._client, self._claim, self._teller = ExchangeClient(access), claim, _Teller(put)
        self._pool, self._out = SharedPool(), deque[SharedRollout](maxlen=WAITING)
        self._counts, self._after = _Counts(), 0
        self._asking = asyncio.Lock()
        self._task = asyncio.create_task(self._run(), name="sharing")

    @property
    def foreign(self) -> int:
        """Return the most members of a group that come from others."""
        return self._options.foreign

    async def stop(self) -> None:
        """End the exchange; what waits to be published is left out."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._client.close()

    def offer(self, groups: Sequence[SettledGroup]) -> None:
        """Publish what settled groups said, when there is time for it."""
        if self._options.publish:
            for group in groups:
                self._out.extend(told_of(group, self._environment.type, self._counts.refused))

    async def members(
        self, orders: Sequence[EpisodeOrder], stage: Stage, seats: dict[str, Seat]
    ) -> list[EpisodeAttempt]:
        """Return members of a group that others said, at most one for each order, scored here."""
        if not orders or not len(self._pool):
            return []
        live = await begin(stage, orders[0].task_seed, False, 0, orders[0].key, lambda _: 0)
        live.leave()
        found = self._pool.of_task(task_digest(self._environment.type, live.task), TRIED * len(orders))
        scored: list[tuple[PublishedRollout, EpisodeAttempt]] = []
        for published in found:
            attempt, refused = await recite(published, orders[0], stage, seats, self._environment.converses)
            if refused:
                self._refuse(published, refused)
            else:
                scored.append((published, attempt))
        return await self._used(_widest(scored, len(orders)), orders)

    async def _used(
        self, chosen: "Sequence[tuple[PublishedRollout, EpisodeAttempt]]", orders: Sequence[EpisodeOrder]
    ) -> list[EpisodeAttempt]:
        """Claim what was chosen and give it its places; what another worker of the run has used is left out."""
        for published, _ in chosen:
            self._pool.take(published)
        digests = [published.rollout.digest for published, _ in chosen]
        try:
            ours = set(await self._claim(digests)) if digests else set()
        except psycopg.Error as error:
            log.warning("could not claim shared rollouts", error=str(error))
            return []
        kept = [attempt for digest, (_, attempt) in zip(digests, chosen, strict=True) if digest in ours]
        if len(kept) < len(chosen):
            self._counts.refused["used_by_another_worker"] += len(chosen) - len(kept)
        for attempt, order in zip(kept, orders, strict=False):
            attempt.order = order
        self._counts.used += len(kept)
        return kept

    def _refuse(self, published: PublishedRollout, reason: str) -> None:
        self._pool.take(published)
        self._counts.refused[reason] += 1

    async def _run(self) -> None:
        pause = POLL_S
        while True:
            pause = POLL_S if await self.turn() else min(2 * pause, LAST_POLL_S)
            await asyncio.sleep(pause)

    async def turn(self) -> bool:
        """Publish what waits, read what is new, and tell of it; returns whether the exchange was there."""
        async with self._asking:
            await self._exchanged()
            await self._teller.tell(self._counts.report())
        return self._counts.state == CONNECTED

    async def _exchanged(self) -> None:
        counts = self._counts
        try:
            await self._publish()
            if self._options.foreign:
                await self._read()
            counts.state, counts.reason = CONNECTED, ""
        except ExchangeError as error:
            if counts.state != error.code:
                log.warning("the exchange is lost; the run goes on by itself", error=str(error))
            counts.state, counts.reason = error.code, error.detail

    async def _publish(self) -> None:
        while self._out:
            batch: list[SharedRollout] = []
            size = 0
            while self._out and len(batch) < POSTED and size < MAX_BODY // 16:
                batch.append(self._out.popleft())
                size += sum(len(turn.text) for turn in batch[-1].turns)
            try:
                await self._client.post(self._options.task_set, batch)
            except ExchangeError as error:
                if error.code is ExchangeFailure.REFUSED:
                    self._counts.refused["refused_by_exchange"] += len(batch)
                    continue
                room = WAITING - len(self._out)
                self._out.extendleft(reversed(batch[-room:] if room else []))
                raise
            self._counts.published += len(batch)

    async def _read(self) -> None:
        for _ in range(READS):
            answer = await self._client.read(self._options.task_set, self._after)
            self._after = answer.next
            for published in answer.rollouts:
                self._counts.received += 1
                if refused := self._pool.add(published):
                    self._counts.refused[refused] += 1
            if not answer.rollouts:
                return


def told_of(group: SettledGroup, environment: str, refused: Counter[str]) -> list[SharedRollout]:
    """Put the finished episodes of a group in words, without those that others said."""
    finishes: dict[tuple[int, str, int], str] = {}
    others: set[int] = set()
    for sample in group.samples:
        for span in sample.spans:
            finishes[sample.member, sample.role, sample.turn + span.offset] = span.finish
            if span.engine.startswith(SHARED):
                others.add(sample.member)
    found = []
    for row in group.episodes:
        if row.status is not EpisodeStatus.FINISHED or row.member in others or not 0 < row.turns <= MAX_TURNS:
            continue
        rollout = SharedRollout(task_digest(environment, row.task), tuple(_turns(row, finishes)))
        if problem := problem_of(rollout):
            refused[f"own_{problem}"] += 1
        else:
            found.append(rollout)
    return found


def _turns(row: EpisodeRow, finishes: dict[tuple[int, str, int], str]) -> list[SharedTurn]:
    said = []
    for entry, text in zip(row.transcript, row.said, strict=True):
        assert isinstance(entry, list)
        role, turn = str(entry[0]), int(entry[1])
        said.append(SharedTurn(role, text, finishes[row.member, role, turn] == "stop"))
    return said


def _widest(
    scored: "Sequence[tuple[PublishedRollout, EpisodeAttempt]]", places: int
) -> "list[tuple[PublishedRollout, EpisodeAttempt]]":
    """Choose those whose scores differ most.

    The published rule takes the highest sum of scores, which prefers what is all correct and teaches nothing, and cuts
    off what is 0 by an index into another order. Neither happens where members are chosen by their spread.
    """
    outcomes = [
        EpisodeOutcome(
            member=place,
            attempt=1,
            status=EpisodeStatus.FINISHED,
            team_score=attempt.outcome.team_score if attempt.outcome else 0.0,
        )
        for place, (_, attempt) in enumerate(scored)
    ]
    return [scored[outcome.member] for outcome in max_variance(outcomes, places)]
