"""Tells people what a rollout worker asks engines for: once per slot while anything is asked, and once when it is not.

Nothing decides by these reports (`demand` is what the core hears); one that the store does not take is left out.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import psycopg
import structlog

from flexmarl.store.telemetry.load_reports import TurnReport, until_next
from workers.rollout.counters import ClientCounters

log = structlog.get_logger(__name__)


def report_of(counters: ClientCounters) -> TurnReport:
    """Return what a client asks for now."""
    return TurnReport(
        asked=counters.demand.now(),
        open=len(counters.open),
        longest=counters.open.longest(),
        moved=dict(counters.left),
        seats=counters.open.by_role(),
    )


class LoadReporter:
    """Tells the load of one run, from its making until `stop`."""

    def __init__(self, run_id: int, counters: ClientCounters, put: Callable[[TurnReport], Awaitable[None]]) -> None:
        self._counters, self._put = counters, put
        self._silent = True
        """The last report said that nothing is asked."""
        self._task = asyncio.create_task(self._run(), name=f"load-{run_id}")

    async def stop(self) -> None:
        """End the reports; what was told last is forgotten by its age."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(until_next(time.time()))
            try:
                await self.report()
            except psycopg.Error as error:
                log.warning("could not report the load", error=str(error))

    async def report(self) -> bool:
        """Tell what is asked now, if that is news; returns whether it was told."""
        report = report_of(self._counters)
        silent = not report.asked and not report.open
        if silent and self._silent:
            return False
        await self._put(report)
        self._silent = silent
        return True
