"""What a fleet that follows measured rates was measured to need."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class MeasuredStep:
    """A train step with the same engines from its beginning to its end."""

    seconds: float
    wait_s: float
    play_s: float
    groups: int


@dataclass(slots=True)
class LearnedFleet:
    """Engines, and the mean seconds of a step with them; 0 engines: nothing is known."""

    engines: int = 0
    step_s: float = 0.0


@dataclass(slots=True)
class ScalingState:
    """Size of a fleet by measured rates. Owner: `run.scaling`."""

    target: int = 0
    """Engines that it asks for; 0: nothing is decided yet, so the minimum."""
    why: str = ""
    since: float = 0.0
    direction: int = 0
    reversals: int = 0
    before: LearnedFleet = field(default_factory=LearnedFleet)
    enough: LearnedFleet = field(default_factory=LearnedFleet)
    recent: list[MeasuredStep] = field(default_factory=list)
    """The last steps with as many engines as now, the oldest first."""
    played_until: float = 0.0
    """End of the play that is counted."""
    seen: list[float] = field(default_factory=list)
    """What must be the same at the end of a step as at the end of the one before, for it to count."""
