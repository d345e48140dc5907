"""Simulations are played here, one at a time, by a process of its own: never by one that answers requests.

Invariants. A row is played by the process that took it last: `take` raises `takes`, every later write names it, and one
that finds another number there stops at once. A process that dies leaves its lease, and whoever looks after its end
takes the row again, `MOST_TAKES` times in all. While a simulation is played nothing else runs in the main thread, so
the alarm that renews the lease may interrupt it anywhere: the simulator holds nothing that has to be given back.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.db.utils import Error as DatabaseError
from django.utils import timezone

from flexmarl.contracts.problems import SpecProblems
from flexmarl.controlplane.simulations import comparing, recorded_load, what_if
from flexmarl.controlplane.simulations.choices import Kind, Reason, SimulationState
from flexmarl.controlplane.simulations.comparing import Found, Playing
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.controlplane.simulations.what_if import TooLittleRecorded

log = structlog.get_logger(__name__)

LEASE_S, BEAT_S = 10.0, 2.0
IDLE_S = 0.5
"""Between two looks for work."""
LIMIT_S = 1800.0
MOST_TAKES = 3
PLAYED_BY: dict[tuple[str, bool], Callable[[Simulation, Playing], Found]] = {
    (Kind.COMPARISON, False): comparing.compared,
    (Kind.COMPARISON, True): recorded_load.compared,
    (Kind.WHAT_IF, True): what_if.played,
}
"""By kind, and whether it is of a run."""


class Stopped(BaseException):
    """The simulation ends here: it was cancelled, taken by another, is over time, or the process is told to end.

    No Exception, so that nothing between takes it for a fault of its own.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Asked:
    """Whether the process was told to end."""

    def __init__(self) -> None:
        self.stop = False


def take() -> Simulation | None:
    """Take the simulation that waits longest, or one whose process died; None when there is none."""
    free = Q(state=SimulationState.QUEUED) | Q(state=SimulationState.RUNNING, lease_until__lt=Now())
    with transaction.atomic():
        row = Simulation.objects.select_for_update(skip_locked=True).filter(free).order_by("id").first()
        if row is None:
            return None
        if row.takes >= MOST_TAKES:
            text = f"The process that played it ended {row.takes} times, most likely for lack of memory."
            _end(row, SimulationState.FAILED, Reason.GAVE_UP, text)
            return None
        row.takes += 1
        row.state, row.started_at = SimulationState.RUNNING, row.started_at or timezone.now()
        row.lease_until, row.done, row.now_at = _lease(), 0, ""
        row.save()
    return row


class Holder:
    """A row as the process that took it writes to it."""

    def __init__(self, row: Simulation, asked: Asked, limit_s: float) -> None:
        self._row, self._asked, self._limit_s = row, asked, limit_s
        self._began = time.monotonic()

    def look(self) -> None:
        """Renew the lease. Raises Stopped when nobody wants the rest."""
        if self._asked.stop:
            raise Stopped("ending")
        if time.monotonic() - self._began > self._limit_s:
            raise Stopped("over time")
        self._write()

    def told(self, done: int, now_at: str) -> None:
        """Write how far it is."""
        self._write(done=done, now_at=now_at[:100])

    def _write(self, **columns: Any) -> None:
        if not _mine(self._row).update(lease_until=_lease(), **columns):
            raise Stopped("taken away")


def play(row: Simulation, asked: Asked, *, limit_s: float = LIMIT_S) -> None:
    """Play a simulation that was taken, and write what it came to."""
    holder = Holder(row, asked, limit_s)
    try:
        with _beating(holder.look) as alarm:
            found = PLAYED_BY[row.kind, row.run_id is not None](row, Playing(holder.told, alarm))
    except Stopped as stopped:
        _stopped(row, stopped.why, limit_s)
    except SpecProblems as refused:
        _end(row, SimulationState.FAILED, Reason.REFUSED, str(refused))
    except TooLittleRecorded as refused:  # it had enough when it was asked for; samples are retired meanwhile
        _end(row, SimulationState.FAILED, Reason.TOO_LITTLE, refused.detail)
    except DatabaseError:
        raise
    except Exception as error:  # whatever a simulation raises ends this one alone; the next one is played
        log.exception("simulation_failed", simulation=str(row.id))
        _end(row, SimulationState.FAILED, Reason.FAULT, f"{type(error).__name__}: {error}"[:500])
    else:
        state = SimulationState.FAILED if found.reason else SimulationState.DONE
        _end(row, state, found.reason, found.reason_text, result=found.result, timelines=found.timelines)


def run(asked: Asked) -> None:
    """Play what waits until told to end."""
    while not asked.stop:
        row = take()
        if row is None:
            time.sleep(IDLE_S)
        else:
            play(row, asked)


def _stopped(row: Simulation, why: str, limit_s: float) -> None:
    if why == "over time":
        text = f"It was not done after {limit_s:.0f} s. Ask for fewer presets, seeds or steps."
        _end(row, SimulationState.FAILED, Reason.TIME_LIMIT, text)
    elif why == "ending":  # whoever comes next begins it again, and this take does not count
        _mine(row).update(state=SimulationState.QUEUED, lease_until=None, takes=row.takes - 1, done=0, now_at="")


def _end(row: Simulation, state: SimulationState, reason: str, text: str, **found: Any) -> None:
    _mine(row).update(
        state=state, reason=reason, reason_text=text, finished_at=timezone.now(), lease_until=None, now_at="",
        updated_at=timezone.now(), version=row.version + 1, **found,
    )  # fmt: skip


def _mine(row: Simulation) -> Any:
    """The row, as long as this process holds it."""
    return Simulation.objects.filter(pk=row.pk, takes=row.takes, state__in=["queued", "running"])


def _lease() -> Any:
    return Now() + timedelta(seconds=LEASE_S)


@contextmanager
def _beating(look: Callable[[], None]) -> Iterator[Callable[[], Any]]:
    """Yield a context in which `look` is called every `BEAT_S` in the midst of whatever is computed."""

    def on_alarm(number: int, frame: FrameType | None) -> None:
        look()

    @contextmanager
    def alarm() -> Iterator[None]:
        look()
        signal.setitimer(signal.ITIMER_REAL, BEAT_S, BEAT_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    timer, before = signal.getitimer(signal.ITIMER_REAL), signal.signal(signal.SIGALRM, on_alarm)
    try:
        yield alarm
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
