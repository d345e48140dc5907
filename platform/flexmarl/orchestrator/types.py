"""What one call of the core returns. Plain values: writing them down is the driver's part."""

from dataclasses import dataclass, field
from enum import StrEnum

from flexmarl.contracts.commands import Command
from flexmarl.contracts.events import Verb
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunReason, RunStatus


class NoteLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class NumberedCommand:
    """A decision with the number that names it for good, and the run epoch it belongs to."""

    no: int
    epoch: int
    command: Command
    reason: str = ""
    """Why it is decided, for people."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One point of a series. `agent` empty is the team; `samples` trained so far is an x axis."""

    name: str
    step: int
    value: float
    agent: str = ""
    stat: str = "mean"
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """One line for people."""

    level: NoteLevel
    text: str
    actor: str = ""
    target: str = ""
    cause: str = ""
    """Id of the request that it follows from."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision that is no command. `rows` leave training by it; `cause` names why, for programs."""

    kind: RulingKind
    reason: str
    policy: str = ""
    cohort: int = -1
    target: str = ""
    rows: int = 0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """A continuous stretch of the run began: it asks for devices."""

    no: int
    epoch: int
    verb: Verb
    """What began it: start, resume, stop or retry."""
    actor: str
    first_step: int
    """Train steps done before it."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """A stretch ended: the run is over, or it gave its devices back."""

    no: int
    status: RunStatus
    reason: RunReason
    reason_text: str
    actor: str
    last_step: int
    """Train steps done by then."""
    versions: dict[str, int]
    """Policy -> committed version; policies without any are left out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a verb that somebody follows ended."""

    operation: str
    succeeded: bool
    status: RunStatus
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything an event led to, and where the run stands after it."""

    commands: list[NumberedCommand]
    void: list[int]
    """Numbers of commands that nobody must carry out any more."""
    metrics: list[Metric]
    notes: list[Note]
    status: RunStatus
    reason: RunReason
    reason_text: str
    epoch: int
    step: int
    deadline: float | None
    """When the core wants a `TimerFired`, in the clock of `now`."""
    attempts: list[AttemptBegan | AttemptEnded] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    rulings: list[Ruling] = field(default_factory=list)
