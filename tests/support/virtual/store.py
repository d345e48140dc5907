"""The store's tables in memory, with the guards of the real one, and a ledger of what may never happen.

Invariants kept as in the real store: a producer key is told once; a command has at most one live token and no write
happens without it; a version commits only on its parent, from the child that serves the lease; a draw settles once.
`PromiseBroken` is raised where the guards are passed and a promise is broken all the same.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.decisions import NumberedCommand
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.orchestrator.types import Decision

STANDING = frozenset({RunStatus.FAILED, RunStatus.KILLED})
"""A run that ended so takes no work any more, whatever its commands say."""
EPISODES = ("finished", "failed", "cancelled")

RowKey = tuple[int, int, int, str, int]
"""draw, member, attempt, role, turn."""


class PromiseBroken(AssertionError):
    """What must never happen happened."""


class Refused(Exception):
    """The store or a child refuses; the code says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class TokenLost(Exception):
    """The holder's command was taken again, ended or voided."""


class Holder(Protocol):
    """Who may hold a command: it renews its token while it is responsive."""

    @property
    def responsive(self) -> bool: ...


class CommandStatus(StrEnum):
    OPEN = "open"
    TAKEN = "taken"
    DONE = "done"
    FAILED = "failed"
    VOID = "void"


@dataclass
class CommandRow:
    no: int
    epoch: int
    command: c.Command
    status: CommandStatus = CommandStatus.OPEN
    token: int = 0
    holder: Holder | None = None


@dataclass
class LeaseRow:
    lease_id: int
    device_id: str
    node: str
    use: e.DeviceUse
    state: str = "held"
    incarnation: str = ""


@dataclass
class MicroBatchRow:
    policy: str
    no: int
    cohort: int
    keys: list[RowKey]
    status: str = "cut"


@dataclass
class Ledger:
    """What was seen from outside, to be held against what the core says."""

    applied: dict[RowKey, tuple[str, int]] = field(default_factory=dict)
    cut: dict[RowKey, tuple[str, int]] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)
    issued: set[int] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)
    aborted: bool = False
    """The run was given up once: what was open then is not trained."""


class VirtualStore:
    def __init__(self, spec: ExperimentSpec) -> None:
        self.spec = spec
        self.status, self.epoch = RunStatus.DRAFT, 1
        self.inbox: dict[str, e.Event] = {}
        self.handled: set[str] = set()
        self.commands: dict[int, CommandRow] = {}
        self.leases: dict[int, LeaseRow] = {}
        self.versions: dict[str, list[str]] = {}
        self.micro_batches: dict[tuple[str, int], MicroBatchRow] = {}
        self.groups: dict[int, tuple[e.GroupSettled, dict[str, int]]] = {}
        """Draw -> how it settled, and the versions that played it."""
        self.ledger = Ledger()
        self._tokens = 0

    # -- inbox ------------------------------------------------------------------------------------------------------
    def put(self, key: str, event: e.Event) -> bool:
        """Queue a fact once."""
        if key in self.handled or key in self.inbox:
            return False
        self.inbox[key] = event
        return True

    # -- commands ---------------------------------------------------------------------------------------------------
    def take(self, no: int, holder: Holder) -> int | None:
        """Take an open command; None when it is not to be had."""
        row = self.commands[no]
        if row.status is not CommandStatus.OPEN or not self._live(row):
            return None
        self._tokens += 1
        row.status, row.token, row.holder = CommandStatus.TAKEN, self._tokens, holder
        return self._tokens

    def _live(self, row: CommandRow) -> bool:
        if row.command.kind == "host_lease":
            return True
        return row.epoch == self.epoch and self.status not in STANDING

    def guard(self, no: int, token: int) -> CommandRow:
        """Raise TokenLost unless the token still holds the command."""
        row = self.commands[no]
        if row.status is not CommandStatus.TAKEN or row.token != token or not self._live(row):
            raise TokenLost(no)
        return row

    def finish(self, no: int, token: int) -> None:
        """Close a command that was carried out."""
        self.guard(no, token).status = CommandStatus.DONE

    def fail(self, no: int, token: int, code: str, retryable: bool) -> None:
        """Close a command that was not, and tell the driver."""
        row = self.guard(no, token)
        row.status = CommandStatus.FAILED
        kind = row.command.kind
        failed = e.CommandFailed(command_no=no, command_kind=kind, code=code, message=code, retryable=retryable)
        self.put(f"failed:{no}:{token}", failed)

    def reopen(self, no: int) -> None:
        """Let somebody else take a command whose holder is gone."""
        row = self.commands[no]
        if row.status is CommandStatus.TAKEN:
            row.status, row.token, row.holder = CommandStatus.OPEN, 0, None

    # -- the driver's transaction -----------------------------------------------------------------------------------
    def commit_decision(self, decision: Decision) -> list[NumberedCommand]:
        """Write a decision down; returns the commands that somebody is to be told of."""
        ended_before = self.status in STANDING
        self.status, self.epoch = decision.status, decision.epoch
        for number in decision.void:
            row = self.commands[number]
            if row.status in (CommandStatus.OPEN, CommandStatus.TAKEN):
                row.status = CommandStatus.VOID
        if self.status in STANDING and not ended_before:
            self.ledger.aborted = True
            for micro_batch in self.micro_batches.values():
                if micro_batch.status == "cut":
                    micro_batch.status = "void"
        fresh = []
        for numbered in decision.commands:
            if numbered.no in self.ledger.issued:
                raise PromiseBroken(f"command number {numbered.no} was used twice")
            self.ledger.issued.add(numbered.no)
            if isinstance(numbered.command, c.CutMicroBatch):
                self._cut(numbered.command)
            elif not isinstance(numbered.command, c.KeepCheckpoints | c.HoldGroups):
                self.commands[numbered.no] = CommandRow(numbered.no, numbered.epoch, numbered.command)
                fresh.append(numbered)
        return fresh

    def _cut(self, command: c.CutMicroBatch) -> None:
        ref = (command.ref.policy, command.ref.no)
        if ref in self.micro_batches:
            raise PromiseBroken(f"the micro-batch number {ref} was used twice")
        keys = [(s.draw, s.member, s.attempt, s.role, s.turn) for s in command.samples]
        for key in keys:
            if key in self.ledger.cut:
                raise PromiseBroken(f"row {key} was cut twice: {self.ledger.cut[key]} and {ref}")
            self.ledger.cut[key] = ref
            if self.spec.policy_of(key[3]) != ref[0]:
                raise PromiseBroken(f"row {key} was cut for the foreign policy {ref[0]}")
            if key[0] not in self.groups or not self._finished(key):
                raise PromiseBroken(f"row {key} was cut and does not exist")
        self.micro_batches[ref] = MicroBatchRow(*ref, command.cohort, keys)

    def _finished(self, key: RowKey) -> bool:
        draw, member, attempt, role, turn = key
        return any(
            episode.member == member
            and episode.attempt == attempt
            and episode.status is EpisodeStatus.FINISHED
            and any(s.role == role and s.turn == turn for s in episode.samples)
            for episode in self.groups[draw][0].episodes
        )

    # -- the workers' transactions ----------------------------------------------------------------------------------
    def settle(self, no: int, token: int, event: e.GroupSettled, versions: dict[str, int]) -> None:
        """Write a group's rows and its fact together; a draw that settled already stays as it is."""
        self.guard(no, token)
        if event.draw not in self.groups:
            self.groups[event.draw] = (event, versions)
            self.put(f"group:{event.draw}", event)

    def serving(self, lease_id: int, incarnation: str) -> None:
        """Raise Refused unless the child is the one the lease counts on."""
        lease = self.leases[lease_id]
        if lease.state != "held" or lease.incarnation != incarnation:
            raise Refused("not_serving")

    def commit_step(self, no: int, token: int, incarnation: str, held: dict[int, float], digest: str) -> None:
        """Apply the rows of a step and commit its version, in one transaction."""
        command = self.guard(no, token).command
        assert isinstance(command, c.OptimizerStep)
        self.serving(command.lease_id, incarnation)
        history = self.versions[command.policy]
        if len(history) != command.next_version:
            raise Refused("version_conflict")
        self._apply(command, held)
        if digest in self.ledger.digests:
            raise PromiseBroken(f"{command.policy} has two versions of one digest")
        self.ledger.digests.add(digest)
        history.append(digest)
        committed = e.StepCommitted(
            policy=command.policy,
            version=command.next_version,
            parent=command.next_version - 1,
            digest=digest,
            accumulator=command.accumulator,
            grad_norm=0.5,
            learning_rate=command.learning_rate,
        )
        self.put(f"step:{command.policy}:{command.next_version}", committed)
        self.finish(no, token)

    def _apply(self, command: c.OptimizerStep, held: dict[int, float]) -> None:
        rows = [self.micro_batches[command.policy, number] for number in command.micro_batches]
        if any(row.status != "cut" for row in rows):
            raise Refused("not_cut")
        if sorted(held) != sorted(command.micro_batches):
            raise PromiseBroken(f"{command.policy} steps with {sorted(held)}, named are {command.micro_batches}")
        if sum(held.values()) != sum(self.z_of(row) for row in rows):
            raise PromiseBroken(f"Z of {command.policy} is not the sum over its members")
        for row in rows:
            row.status = "applied"
            for key in row.keys:
                if key in self.ledger.applied:
                    raise PromiseBroken(f"row {key} was applied twice: {self.ledger.applied[key]}")
                self.ledger.applied[key] = (command.policy, command.next_version)
                lag = command.next_version - 1 - self.groups[key[0]][1][command.policy]
                if not 0 <= lag <= bound_of(self.spec, command.policy):
                    raise PromiseBroken(f"row {key} has lag {lag}")

    def z_of(self, row: MicroBatchRow) -> float:
        """Return a micro-batch's share of Z: its response tokens."""
        tokens = 0
        for draw, member, _, role, turn in row.keys:
            episode = next(x for x in self.groups[draw][0].episodes if x.member == member)
            tokens += next(s.tokens for s in episode.samples if s.role == role and s.turn == turn)
        return float(tokens)

    def fates(self, origin: Origin, without: set[int]) -> dict[str, int]:
        """Count the episodes of settled groups by fate, as their rows say."""
        counts = dict.fromkeys(EPISODES, 0)
        for event, _ in self.groups.values():
            if event.origin is origin and event.draw not in without:
                for episode in event.episodes:
                    counts[episode.status.value] += 1
        return counts


def bound_of(spec: ExperimentSpec, policy: str) -> int:
    """Return the highest own lag that a policy's rows may have when they are applied."""
    rule = spec.lag_policy_of(policy)
    return rule.bound if rule.at_cut != "train" else 1 << 30
