"""The window of time that a figure speaks of. Every figure of this app carries its window."""

from dataclasses import dataclass

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import runs
from flexmarl.store.reads import activity

DEFAULT_WINDOW_S = 300.0
MIN_WINDOW_S = 1.0
MAX_WINDOW_S = 7 * 86_400.0
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds since the epoch, on the database's clock."""

    since: float
    until: float
    step: int | None = None

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.until - self.since

    def words(self) -> str:
        """Say which window this is."""
        if self.step is not None:
            return f"step {self.step}"
        large = next(((unit, word) for unit, word in _UNITS if self.seconds >= unit and self.seconds % unit == 0), None)
        return f"{self.seconds / large[0]:g} {large[1]}" if large else f"{self.seconds:g} s"


def window_of(
    run: Run,
    window_s: float | None = None,
    *,
    step: int | None = None,
    until: float | None = None,
    now: float | None = None,
) -> Window:
    """Return a window of a run: a step, or the seconds before `until`, now or the run's end. Refuses unknown steps.

    `now` is the database's clock, for those who have just read it.
    """
    conn = store_connection()
    if step is not None:
        found = activity.step_window(conn, run.no, step)
        if found is None:
            text = f"step={step} is not a finished step of this run."
            hint = f"It has finished {run.state.step} steps." if run.state.step else "No step is finished yet."
            raise ValidationProblem(text, errors=[FieldError("step", "unknown_step", text, hint, "query")])
        return Window(*found, step=step)
    finished = run.state.finished_at
    newest = finished.timestamp() if finished else now
    if newest is None:
        newest = runs.database_now(conn)
    end = newest if until is None else min(until, newest)
    return Window(end - (window_s or DEFAULT_WINDOW_S), end)
