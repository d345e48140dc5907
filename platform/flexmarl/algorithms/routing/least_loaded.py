"""Least outstanding work: what the engine said at its last answer plus what was sent to it since."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine that may answer, and how busy it is as far as this router knows."""

    engine: str
    running: int = 0
    """Requests in its slots, by its last answer."""
    waiting: int = 0
    """Requests in its queue, by its last answer."""
    in_flight: int = 0
    """Requests sent from here since that answer."""

    @property
    def outstanding(self) -> int:
        """Return the requests it is believed to have."""
        return self.running + self.waiting + self.in_flight


Router = Callable[[Sequence[EngineLoad]], EngineLoad]


def least_loaded(engines: Sequence[EngineLoad]) -> EngineLoad:
    """Pick the engine with the least outstanding work; equal ones by name. Raises ValueError without engines."""
    if not engines:
        raise ValueError("no engine to choose from")
    return min(engines, key=lambda load: (load.outstanding, load.engine))
