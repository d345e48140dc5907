"""What a rollout worker asks engines for, told to the run's core where engines cannot hold every policy, or
where what they have left of a version is gathered.

Invariants: turns are counted, never told one by one. A report goes out at most every `REPORT_S`, when it differs from
the last one or when turns still wait and the last is about to count no more; while one has not been handled no other is
queued, so a driver that is away finds one fact of each worker.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import structlog

from flexmarl.contracts.events import DemandReported, RequestedTurns

log = structlog.get_logger(__name__)

REPORT_S = 1.0
REPORT_AGAIN = 5
"""Looks after which an unchanged report goes out again, while it says that turns are asked for."""


@dataclass(frozen=True, slots=True)
class AtEngines:
    """What engines have, by lease."""

    turns: dict[int, int] = field(default_factory=dict)
    queued: dict[int, int] = field(default_factory=dict)
    """Those of them that wait there."""
    tokens: dict[int, int] = field(default_factory=dict)
    """Of prompts and replies of this process's turns."""


class TurnDemand:
    """Turns of one run in this process, by policy: asked for, and sent to engines."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()

    @contextlib.contextmanager
    def asking(self, policy: str) -> Iterator[None]:
        """Count a turn until it has its reply."""
        self._asked[policy] += 1
        try:
            yield
        finally:
            self._asked[policy] -= 1

    @contextlib.contextmanager
    def resting(self, policy: str) -> Iterator[None]:
        """Count a turn for a while as not asked for."""
        self._asked[policy] -= 1
        try:
            yield
        finally:
            self._asked[policy] += 1

    def sent(self, policy: str, turns: int) -> None:
        """Count turns that went to an engine; fewer than none when they came back."""
        self._sent[policy] += turns

    def now(self) -> dict[str, RequestedTurns]:
        """Return the policies that are asked, with how many turns wait for an engine and how many are at one."""
        found = {}
        for policy, asked in self._asked.items():
            if asked > 0:
                in_flight = min(asked, max(self._sent[policy], 0))
                found[policy] = RequestedTurns(waiting=asked - in_flight, in_flight=in_flight)
        return found


class Reporter:
    """Tells the demand of one run from time to time, from its making until `stop`."""

    def __init__(
        self,
        worker: str,
        demand: TurnDemand,
        at_engines: Callable[[], AtEngines],
        put: Callable[[int, DemandReported], Awaitable[bool]],
        closely: bool = False,
    ) -> None:
        """`closely`: what engines have is news as well."""
        self._worker, self._demand, self._at_engines, self._put = worker, demand, at_engines, put
        self._closely = closely
        self._number = 0
        self._last: tuple[dict[str, RequestedTurns], AtEngines | None] = {}, None
        self._unchanged = 0
        self._task = asyncio.create_task(self._run(), name=f"demand-{worker}")

    async def stop(self) -> None:
        """End the reports; what was told last is forgotten by its age."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            try:
                await self.report()
            except psycopg.Error as error:
                log.warning("could not report demand", worker=self._worker, error=str(error))

    async def report(self) -> bool:
        """Tell what is asked for now, if that is due; returns whether it was told."""
        policies, there = self._demand.now(), self._at_engines()
        news = policies, there if self._closely and policies else None
        self._unchanged += 1
        if news == self._last and not (policies and self._unchanged >= REPORT_AGAIN):
            return False
        event = DemandReported(
            worker=self._worker, policies=policies, engines=there.turns, queued=there.queued, cache=there.tokens
        )
        if not await self._put(self._number + 1, event):
            return False
        self._number, self._last, self._unchanged = self._number + 1, news, 0
        return True
