"""One call of the core in the making: the plan, the state, the clock, and what has been decided so far.

Work is named by a key ("load:7:solver"). `issue` gives a command to a key at most once until it is answered, so the
parts of the core may state what is wanted on every call instead of remembering what they asked for.
"""

import msgspec

from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded, VerbEnded
from flexmarl.contracts.commands import Command
from flexmarl.contracts.decisions import Metric, NoteLevel, NumberedCommand, RunNote
from flexmarl.contracts.rulings import Ruling, RulingKind
from flexmarl.contracts.status import RunReason
from flexmarl.orchestrator.plan import Plan
from flexmarl.orchestrator.reasons import reason_of
from flexmarl.orchestrator.state.in_flight import Outstanding
from flexmarl.orchestrator.state.tree import Failure, RunState

BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Wait after the n-th failure of the same work in a row."""


class Context(msgspec.Struct, gc=False):
    plan: Plan
    state: RunState
    now: float
    commands: list[NumberedCommand] = []
    void: list[int] = []
    metrics: list[Metric] = []
    notes: list[RunNote] = []
    attempts: list[AttemptBegan | AttemptEnded] = []
    outcomes: list[VerbEnded] = []
    rulings: list[Ruling] = []

    def emit(self, command: Command, *, key: str = "", why: str = "") -> int:
        """Decide a command that nobody answers; returns its number. `why` replaces the reason it is told with."""
        number = self.state.numbers.command
        self.state.numbers.command = number + 1
        reason = reason_of(self.state, command, key, why)
        self.commands.append(NumberedCommand(number, self.state.lifecycle.epoch, command, reason))
        return number

    def wanted(self, key: str) -> bool:
        """Tell whether a key's work may be issued now: it is not on its way, and no back-off holds it."""
        if key in self.state.outstanding:
            return False
        failure = self.state.failures.get(key)
        return failure is None or failure.until <= self.now

    def issue(
        self, key: str, command: Command, *, lease_id: int = 0, version: int = -1, left: int = 1, why: str = ""
    ) -> None:
        """Decide a command under a key. Callers ask `wanted` first."""
        number = self.emit(command, key=key, why=why)
        self.state.outstanding[key] = Outstanding(number, command.kind, lease_id, version, left)

    def answered(self, key: str) -> None:
        """Close a key: its work is done."""
        self.state.outstanding.pop(key, None)
        self.state.failures.pop(key, None)

    def withdraw(self, key: str) -> None:
        """Void the command of a key, if it is on its way."""
        gone = self.state.outstanding.pop(key, None)
        if gone is not None:
            self.void.append(gone.no)

    def withdraw_prefix(self, prefix: str) -> None:
        """Void the commands of all keys that start so."""
        for key in self.state.outstanding.keys_of(prefix):
            self.withdraw(key)

    def withdraw_kind(self, kind: str) -> None:
        """Void the commands of a kind."""
        for key in [key for key, o in self.state.outstanding.items() if o.kind == kind]:
            self.withdraw(key)

    def withdraw_lease(self, lease_id: int) -> None:
        """Void what a lease's child was asked for, except to live: that the lease itself decides."""
        outstanding = self.state.outstanding
        for key in outstanding.of_lease(lease_id, self.state.policies):
            if outstanding[key].kind != "host_lease":
                self.withdraw(key)

    def failed(self, key: str, waits_for: str = "", reason: RunReason = RunReason.WAITING_FOR_SPACE) -> int:
        """Note one more failure of a key's work and hold it back; returns how often it failed in a row for this cause.

        What waits for something is no failure of the work: neither kind counts towards the other.
        """
        before = self.state.failures.get(key)
        in_row = (
            before is not None
            and bool(before.waits_for) == bool(waits_for)
            and (not waits_for or before.waits_reason is reason)
        )
        count = before.count + 1 if before is not None and in_row else 1
        until = self.now + BACKOFF_S[min(count, len(BACKOFF_S)) - 1]
        self.state.failures[key] = Failure(count, until, waits_for, reason)
        return count

    def note(
        self, text: str, level: NoteLevel = NoteLevel.INFO, *, actor: str = "", target: str = "", cause: str = ""
    ) -> None:
        """Say a line to people."""
        self.notes.append(RunNote(level, text, actor, target, cause))

    def rule(
        self,
        kind: RulingKind,
        reason: str,
        *,
        policy: str = "",
        cohort: int = -1,
        target: str = "",
        rows: int = 0,
        cause: str = "",
    ) -> None:
        """Decide something that is no command: told with its reason, and counted with the rows it takes out."""
        self.rulings.append(Ruling(kind, reason, policy, cohort, target, rows, cause))

    def metric(self, name: str, value: float, step: int, agent: str = "", stat: str = "mean") -> None:
        """Add a point to a series."""
        self.metrics.append(Metric(name, step, value, agent, stat, self.state.totals.samples_trained))
