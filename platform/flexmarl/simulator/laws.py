"""What must hold of every simulation, whatever was decided: looked at from outside, from facts, commands and turns.

`Watch` is put on a run before it plays; `broken` looks at it whenever the run stands still, at its end or between.
The laws are written from what was told and asked for, not from the counters of the core or of the models: where they
speak of these, it is to compare them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin
from flexmarl.orchestrator.types import Decision, NumberedCommand
from flexmarl.simulator.cluster import Cluster
from flexmarl.simulator.groups import EpisodeTurn
from flexmarl.simulator.report import shares
from flexmarl.simulator.turns import Turn

RowId = tuple[int, int, int, str, int]
"""(draw, member, attempt, role, turn)"""


@dataclass(frozen=True, slots=True)
class Broken:
    law: str
    evidence: str


@dataclass(slots=True)
class Watch:
    """A run with all that was told to its core, all that it decided, and all turns that were asked."""

    cluster: Cluster
    facts: list[tuple[float, e.Event]] = field(default_factory=list)
    commands: dict[int, NumberedCommand] = field(default_factory=dict)
    decided: dict[int, float] = field(default_factory=dict)
    """Command -> when it was decided."""
    void: dict[int, float] = field(default_factory=dict)
    """Command -> when it was made void."""
    turns: dict[int, Turn] = field(default_factory=dict)

    @classmethod
    def over(cls, cluster: Cluster) -> "Watch":
        """Watch a run from now on."""
        watch = cls(cluster)
        cluster.driver.heard = watch._heard
        cluster.playing.engines.asked_for = watch._asked
        return watch

    def _heard(self, now: float, fact: e.Event, decision: Decision) -> None:
        self.facts.append((now, fact))
        self.commands.update((numbered.no, numbered) for numbered in decision.commands)
        self.decided.update((numbered.no, now) for numbered in decision.commands)
        self.void.update((no, now) for no in decision.void)

    def _asked(self, turn: Turn) -> None:
        self.turns[id(turn)] = turn

    def settled(self) -> Iterator[tuple[float, e.GroupSettled, EpisodeOutcome]]:
        """List the outcomes that were told."""
        for now, fact in self.facts:
            if isinstance(fact, e.GroupSettled):
                for outcome in fact.episodes:
                    yield now, fact, outcome


def broken(watch: Watch) -> list[Broken]:
    """Return the laws that do not hold, each with the first evidence against it."""
    found = []
    for law in LAWS:
        evidence = next(law(watch), None)
        if evidence is not None:
            found.append(Broken(law.__name__, evidence))
    return found


def tokens_are_conserved(watch: Watch) -> Iterator[str]:
    """What engines made is what the turns have: answered, cancelled, or on their way."""
    made, restarted, truncated = 0.0, False, 0
    for turn in watch.turns.values():
        made += turn.engine.made_of(turn) if turn.engine is not None else turn.made
        restarted = restarted or turn.follow == "restart_turn"
        truncated += (1 + len(turn.segments) // 2) * (turn.follow != "")  # whole tokens go on under newer weights
    engines = watch.cluster.hosting.made()
    slack = 1e-6 * engines + truncated + 0.5
    if made > engines + slack or (made < engines - slack and not restarted):
        yield f"engines made {engines:.1f} tokens, turns have {made:.1f}"


def answered_turns_are_told_once(watch: Watch) -> Iterator[str]:
    """A finished episode's rows are the turns that it asked, numbered without a gap, with the tokens that were made."""
    replies: dict[tuple[int, int, int, bool], Counter[tuple[str, int, int]]] = {}
    for turn in watch.turns.values():
        assert isinstance(turn, EpisodeTurn)
        own = turn.episode
        key = own.group.order.draw, own.member, own.attempt, own.twin
        replies.setdefault(key, Counter())[turn.role, turn.number, turn.reply] += 1
    for _, fact, outcome in watch.settled():
        if outcome.status is not EpisodeStatus.FINISHED:
            continue
        rows = Counter((row.role, row.turn, row.tokens) for row in outcome.samples)
        name = f"draw {fact.draw}, member {outcome.member}, attempt {outcome.attempt}"
        asked = replies.get((fact.draw, outcome.member, outcome.attempt, outcome.replaced), Counter())
        if set(rows) - set(asked) or max(rows.values(), default=1) > 1:
            yield f"{name}: rows that nobody asked for, or twice: {sorted(rows - asked)[:3]}"
        for role in {row.role for row in outcome.samples}:
            numbers = sorted(row.turn for row in outcome.samples if row.role == role)
            if numbers != list(range(len(numbers))):
                yield f"{name}: the turns of {role} are numbered {numbers}"


def groups_settle_once(watch: Watch) -> Iterator[str]:
    """Every member of a draw has one outcome per command."""
    seen: set[tuple[int, int, Origin, int]] = set()
    for now, fact, outcome in watch.settled():
        key = fact.command_no, fact.draw, fact.origin, outcome.member
        if key in seen:
            yield f"member {outcome.member} of draw {fact.draw} settled a second time at {now:.3f} s"
        seen.add(key)


def versions_are_allowed(watch: Watch) -> Iterator[str]:
    """Tokens are made by the pinned weights, or by newer ones that were committed where the policy follows them."""
    committed: Counter[str] = Counter()
    makers = _last_makers(watch)
    spec = watch.cluster.driver.core.plan.spec
    for now, fact in watch.facts:
        if isinstance(fact, e.StepCommitted):
            committed[fact.policy] = max(committed[fact.policy], fact.version)
        if not isinstance(fact, e.GroupSettled):
            continue
        order = watch.commands[fact.command_no].command
        assert isinstance(order, c.PlayGroups)
        for row, own in ((row, outcome) for outcome in fact.episodes for row in outcome.samples):
            policy = spec.policy_of(row.role)
            pin, versions = order.pins[policy].version, row.segments[::2]
            name = f"turn {row.turn} of {row.role} in draw {fact.draw}, told at {now:.3f} s"
            made_by = makers.get((fact.draw, own.member, own.attempt, own.replaced, row.role, row.turn))
            if made_by is not None and (versions or (pin,))[-1] not in made_by:
                yield f"{name} ended with {(versions or (pin,))[-1]} as it is told, with {made_by} as it was made"
            if versions and (policy not in order.follows or min(versions) < pin):
                yield f"{name}, pinned to version {pin}, was answered by {versions}"
            if max(versions, default=pin) > committed[policy] or list(versions) != sorted(set(versions)):
                yield f"{name} was answered by {versions or pin}, {committed[policy]} is committed"
            if versions and sum(row.segments[1::2]) != row.tokens:
                yield f"{name} has {row.tokens} tokens in segments {row.segments}"


def _last_makers(watch: Watch) -> dict[tuple[int, int, int, bool, str, int], set[int]]:
    """Return which weights made the end of each reply; of several, where its command was taken twice."""
    found: dict[tuple[int, int, int, bool, str, int], set[int]] = {}
    for turn in watch.turns.values():
        if isinstance(turn, EpisodeTurn):
            own = turn.episode
            key = own.group.order.draw, own.member, own.attempt, own.twin, turn.role, turn.number
            found.setdefault(key, set()).add(turn.version)
    return found


def engines_hold_one_version(watch: Watch) -> Iterator[str]:
    """Engines that serve one version at a time have forgotten an older one before they hold a newer one."""
    if not watch.cluster.driver.core.plan.one_version:
        return
    held: dict[tuple[int, str, str], int] = {}
    for now, fact in watch.facts:
        if isinstance(fact, e.PolicyUnloaded):
            held.pop((fact.lease_id, fact.incarnation, fact.policy), None)
        elif isinstance(fact, e.WeightsServed):
            key = fact.lease_id, fact.incarnation, fact.policy
            if held.setdefault(key, fact.version) != fact.version:
                which = f"versions {held[key]} and {fact.version} of {fact.policy}"
                yield f"engine {fact.lease_id} holds {which} at {now:.3f} s"


def rows_are_conserved(watch: Watch) -> Iterator[str]:
    """A row is cut once at most; it is trained, on its way, or recorded: of an evaluation, or with a cause."""
    state = watch.cluster.driver.core.state
    told = {
        (fact.origin, (fact.draw, outcome.member, outcome.attempt, row.role, row.turn))
        for _, fact, outcome in watch.settled()
        if outcome.status is EpisodeStatus.FINISHED
        for row in outcome.samples
    }
    cut: Counter[RowId] = Counter()
    size: dict[tuple[str, int], int] = {}
    for numbered in watch.commands.values():
        if isinstance(numbered.command, c.CutMicroBatch):
            command = numbered.command
            size[command.ref.policy, command.ref.no] = len(command.samples)
            cut.update((row.draw, row.member, row.attempt, row.role, row.turn) for row in command.samples)
    twice = next((row for row, count in cut.items() if count > 1), None)
    if twice is not None:
        yield f"row {twice} is in two micro-batches"
    stray = next((row for row in cut if (Origin.TRAIN, row) not in told), None)
    if stray is not None:
        yield f"row {stray} was cut and never told"
    trained = sum(size[key] for key in _trained(watch))
    if trained != state.samples_trained:
        yield f"{trained} rows are in steps that were committed, the core counts {state.samples_trained}"
    waiting = sum(len(rows) for cohort in state.cohorts for group in cohort.pending for rows in group.rows.values())
    left = len(told) - len(cut) - waiting - state.samples_recorded
    if left:
        yield f"{len(told)} rows told, {len(cut)} cut, {waiting} wait, {state.samples_recorded} recorded: {left} left"


def micro_batches_are_trained_once(watch: Watch) -> Iterator[str]:
    """Each micro-batch is in one committed step at most, and its gradient was there before."""
    counts = Counter(_trained(watch))
    twice = next((key for key, count in counts.items() if count > 1), None)
    if twice is not None:
        yield f"micro-batch {twice[1]} of {twice[0]} is in {counts[twice]} committed steps"
    there = {(f.policy, f.micro_batch) for _, f in watch.facts if isinstance(f, e.MicroBatchAccumulated)}
    missing = next((key for key in counts if key not in there), None)
    if missing is not None:
        yield f"micro-batch {missing[1]} of {missing[0]} was trained without a gradient"


def _trained(watch: Watch) -> list[tuple[str, int]]:
    """List the micro-batches of all committed steps."""
    asked = {
        (order.policy, order.next_version, order.accumulator): order.micro_batches
        for numbered in watch.commands.values()
        if isinstance(order := numbered.command, c.OptimizerStep)
    }
    return [
        (fact.policy, no)
        for _, fact in watch.facts
        if isinstance(fact, e.StepCommitted)
        for no in asked[fact.policy, fact.version, fact.accumulator]
    ]


def commands_are_carried_out_or_void(watch: Watch) -> Iterator[str]:
    """A command was answered, is void, or somebody is still at it and the core waits for the answer."""
    answered = {answered_by(fact) for _, fact in watch.facts}
    waited_for = {command.no for command in watch.cluster.driver.core.state.outstanding.values()}
    played = {(f.command_no, f.draw) for _, f in watch.facts if isinstance(f, e.GroupSettled)}
    for no, numbered in watch.commands.items():
        if no in watch.void or no in waited_for:
            continue
        command = numbered.command
        if isinstance(command, c.PlayGroups):
            missing = [order.draw for order in command.groups if (no, order.draw) not in played]
            if missing:
                yield f"command {no} is to play draw {missing[0]}: nobody waits for it, and it never settled"
        elif (key := asked_by(no, command)) is not None and key not in answered:
            yield f"command {no} ({command.kind}) was neither carried out nor made void, and nobody waits for it"


Key = tuple[str, object, object]


def asked_by(no: int, command: c.Command) -> Key | None:
    """Return what would answer a command; None for those that are done as soon as they are decided or that end late."""
    match command:
        case c.RequestDevices() | c.LoadWeights() | c.UnloadPolicy() | c.SuspendPolicy() | c.SleepEngine():
            return command.kind, no, 0
        case c.WakeEngine() | c.VacateTrainer():
            return command.kind, no, 0
        case c.BindPolicy():
            return command.kind, command.policy, command.lease_id
        case c.Accumulate():
            return command.kind, command.policy, command.micro_batch
        case c.OptimizerStep():
            return command.kind, command.policy, command.next_version
        case c.WriteCheckpoint():
            return command.kind, command.label, command.step
    return None


_BY_NUMBER: dict[type[e.Event], str] = {
    e.DevicesGranted: "request_devices",
    e.WeightsServed: "load_weights",
    e.PolicyUnloaded: "unload_policy",
    e.PolicySuspended: "suspend_policy",
    e.EngineSlept: "sleep_engine",
    e.EngineWoke: "wake_engine",
    e.TrainerVacated: "vacate_trainer",
}
"""Facts that name the command they answer."""


def answered_by(fact: e.Event) -> Key | None:
    """Return what a fact answers, None when it is no answer."""
    kind = _BY_NUMBER.get(type(fact))
    if kind is not None:
        return kind, vars(fact)["command_no"], 0
    match fact:
        case e.PolicyBound():
            return "bind_policy", fact.policy, fact.lease_id
        case e.MicroBatchAccumulated():
            return "accumulate", fact.policy, fact.micro_batch
        case e.StepCommitted():
            return "optimizer_step", fact.policy, fact.version
        case e.CheckpointWritten():
            return "write_checkpoint", fact.label, fact.step
        case e.CommandFailed():
            return fact.command_kind, fact.command_no, 0
    return None


def devices_have_one_lease(watch: Watch) -> Iterator[str]:
    """No device is held twice at once, but by a trainer beside an engine."""
    held = sorted(
        (own.device_id, own.since, own.until, lease)
        for lease, own in watch.cluster.trace.held.items()
        if not own.beside
    )
    for one, other in pairwise(held):
        if one[0] == other[0] and other[1] < one[2]:
            yield f"{one[0]} is leased as {one[3]} until {one[2]:.3f} s and as {other[3]} from {other[1]:.3f} s"


def device_time_adds_up(watch: Watch) -> Iterator[str]:
    """A device does something only while it is held, and each of its moments is work or idle by one cause."""
    now, held = watch.cluster.clock.now, watch.cluster.trace.held
    intervals = watch.cluster.trace.until(now)
    for one in intervals:
        own = held[one.lease_id]
        if one.began < own.since - 1e-9 or one.ended > own.until + 1e-9:
            yield f"{one.kind} from {one.began:.3f} s to {one.ended:.3f} s lies outside of lease {one.lease_id}"
    if now > 0.0:
        busy, idle = shares(intervals, held, 0.0, now)
        for use, share in busy.items():
            total = share + sum(idle[use].values())
            worst = min(share, *idle[use].values())
            if any(own.use == use for own in held.values()) and (abs(total - 1.0) > 1e-6 or worst < -1e-9):
                yield f"the time of {use}s adds up to {total:.9f}, its least part is {worst:.9f}"


LAWS: tuple[Callable[[Watch], Iterator[str]], ...] = (
    tokens_are_conserved,
    answered_turns_are_told_once,
    groups_settle_once,
    versions_are_allowed,
    engines_hold_one_version,
    rows_are_conserved,
    micro_batches_are_trained_once,
    commands_are_carried_out_or_void,
    devices_have_one_lease,
    device_time_adds_up,
)
