"""What one call of the core returns. Plain values: writing them down is the driver's part.

A large run makes millions of them, and none can be part of a cycle: they are hidden from the garbage collector, which
would otherwise walk all that a driver holds until its commit, again and again. What is empty is the empty tuple.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded, VerbEnded
from flexmarl.contracts.commands import Command
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunReason, RunStatus


class NoteLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class NumberedCommand(msgspec.Struct, frozen=True, gc=False):
    """A decision with the number that names it for good, and the run epoch it belongs to."""

    no: int
    epoch: int
    command: Command
    reason: str = ""
    """Why it is decided, for people."""


class Metric(msgspec.Struct, frozen=True, gc=False):
    """One point of a series. `agent` empty is the team; `samples` trained so far is an x axis."""

    name: str
    step: int
    value: float
    agent: str = ""
    stat: str = "mean"
    samples: int = 0


class RunNote(msgspec.Struct, frozen=True, gc=False):
    """One line for people."""

    level: NoteLevel
    text: str
    actor: str = ""
    target: str = ""
    cause: str = ""
    """Id of the request that it follows from."""


class Ruling(msgspec.Struct, frozen=True, gc=False):
    """A decision that is no command. `rows` leave training by it; `cause` names why, for programs."""

    kind: RulingKind
    reason: str
    policy: str = ""
    cohort: int = -1
    target: str = ""
    rows: int = 0
    cause: str = ""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Everything an event led to, and where the run stands after it."""

    commands: Sequence[NumberedCommand]
    void: Sequence[int]
    """Numbers of commands that nobody must carry out any more."""
    metrics: Sequence[Metric]
    notes: Sequence[RunNote]
    status: RunStatus
    reason: RunReason
    reason_text: str
    epoch: int
    step: int
    deadline: float | None
    """When the core wants a `TimerFired`, in the clock of `now`."""
    attempts: Sequence[AttemptBegan | AttemptEnded] = ()
    outcomes: Sequence[VerbEnded] = ()
    rulings: Sequence[Ruling] = ()
