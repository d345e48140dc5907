"""What one call of the core returns: a plain value. Writing it down is the driver's part.

A large run makes millions of them, and none can be part of a cycle: they are hidden from the garbage collector, which
would otherwise walk all that a driver holds until its commit, again and again. What is empty is the empty tuple.
"""

from collections.abc import Sequence

import msgspec

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded, VerbEnded
from flexmarl.contracts.decisions import Metric, NumberedCommand, RunNote
from flexmarl.contracts.rulings import Ruling
from flexmarl.contracts.status import RunReason, RunStatus


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
