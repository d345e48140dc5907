"""Simulations are played here, one at a time, by a process of its own: never by one that answers requests.

Who may write to a row is said by `common.leased_work`. While a simulation is played nothing else runs in the main
thread, so the alarm that renews the lease may interrupt it anywhere: the simulator holds nothing that has to be given
back.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import structlog
from django.db.utils import Error as DatabaseError

from flexmarl.contracts.problems import SpecProblems
from flexmarl.controlplane.common import leased_work
from flexmarl.controlplane.common.leased_work import Holder, Stopped, end
from flexmarl.controlplane.common.models import WorkState
from flexmarl.controlplane.simulations import comparing, recorded_load, what_if
from flexmarl.controlplane.simulations.choices import SimulationFailure, SimulationKind
from flexmarl.controlplane.simulations.comparing import ComparisonProgress, ComparisonResult
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.controlplane.simulations.what_if import TooLittleRecorded

log = structlog.get_logger(__name__)

LEASE_S, BEAT_S = 10.0, 2.0
IDLE_S = 0.5
"""Between two looks for work."""
LIMIT_S = 1800.0
PLAYED_BY: dict[tuple[str, bool], Callable[[Simulation, ComparisonProgress], ComparisonResult]] = {
    (SimulationKind.COMPARISON, False): comparing.compared,
    (SimulationKind.COMPARISON, True): recorded_load.compared,
    (SimulationKind.WHAT_IF, True): what_if.played,
}
"""By kind, and whether it is of a run."""


class StopSignal:
    """`stop`: the process received a stop signal; `turned`: called after each piece of work, for the heartbeat."""

    def __init__(self, turned: Callable[[], None] = lambda: None) -> None:
        self.stop = False
        self.turned = turned


def take() -> Simulation | None:
    """Take the simulation that waits longest, or one whose process died; None when there is none."""
    gave_up = "The simulation process exited {takes} times, most likely out of memory."
    return leased_work.take(Simulation, LEASE_S, gave_up)


def play(row: Simulation, asked: StopSignal, *, limit_s: float = LIMIT_S) -> None:
    """Play a simulation that was taken, and write what it came to."""
    holder = Holder(row, LEASE_S, limit_s, lambda: asked.stop)

    def look() -> None:
        asked.turned()
        holder.look()
        holder.write()

    def told(done: int, now_at: str) -> None:
        holder.write(done=done, now_at=now_at[:100])

    try:
        with _beating(look) as alarm:
            found = PLAYED_BY[row.kind, row.run_id is not None](row, ComparisonProgress(told, alarm))
    except Stopped as stopped:
        holder.stopped(stopped.why, "Request fewer presets, seeds or steps.")
    except SpecProblems as refused:
        end(row, WorkState.FAILED, SimulationFailure.REFUSED, str(refused))
    except TooLittleRecorded as refused:  # it had enough when it was asked for; samples are retired meanwhile
        end(row, WorkState.FAILED, SimulationFailure.TOO_LITTLE, refused.detail)
    except DatabaseError:
        raise
    except Exception as error:  # whatever a simulation raises ends this one alone; the next one is played
        log.exception("simulation_failed", simulation=str(row.id))
        end(row, WorkState.FAILED, SimulationFailure.FAULT, f"{type(error).__name__}: {error}"[:500])
    else:
        state = WorkState.FAILED if found.reason else WorkState.DONE
        end(row, state, found.reason, found.reason_text, result=found.result, timelines=found.timelines)


def run(asked: StopSignal) -> None:
    """Play what waits until told to end."""
    while not asked.stop:
        asked.turned()
        row = take()
        if row is None:
            time.sleep(IDLE_S)
        else:
            play(row, asked)


@contextmanager
def _beating(look: Callable[[], None]) -> Iterator[Callable[[], Any]]:
    """Yield a context in which `look` is called in the midst of whatever is computed, `BEAT_S` after it last returned.

    The timer is set anew behind each call, since an alarm must not interrupt the write of the one before it.
    """
    beating = False

    def on_alarm(number: int, frame: FrameType | None) -> None:
        if beating:  # otherwise it was raised before the timer was stopped, and arrives behind that
            look()
            signal.setitimer(signal.ITIMER_REAL, BEAT_S)

    @contextmanager
    def alarm() -> Iterator[None]:
        nonlocal beating
        look()
        beating = True
        signal.setitimer(signal.ITIMER_REAL, BEAT_S)
        try:
            yield
        finally:
            beating = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    timer, before = signal.getitimer(signal.ITIMER_REAL), signal.signal(signal.SIGALRM, on_alarm)
    try:
        yield alarm
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
