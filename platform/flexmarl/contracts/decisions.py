"""What an event led to: numbered commands, points of series and lines for people; rulings are in `rulings`.

A large run makes millions of them, and none can be part of a cycle: they are hidden from the garbage collector, which
would otherwise walk all that a driver holds until its commit, again and again.
"""

from enum import StrEnum

import msgspec

from flexmarl.contracts.commands import Command


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
