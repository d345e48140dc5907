"""Invariants of every simulation, whatever was decided, checked from outside: from events, commands and turns.

`RunWatch` is put on a run before it plays; `broken` looks at it whenever the run stands still, at its end or between.
They are computed from events, commands and turns, not from the counters of the core or of the models; where they read
these counters, they compare them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.simulator.reporting.report import shares
from flexmarl.simulator.reporting.step_invariants import (
    RowId,
    micro_batches_are_trained_once,
    rows_are_within_their_bound,
    steps_train_their_groups,
    trained_in,
)
from flexmarl.simulator.reporting.watching import RunWatch
from flexmarl.simulator.rollout.episodes import EpisodePlaying
from flexmarl.simulator.rollout.groups import EpisodeKey, EpisodeTurn
from flexmarl.simulator.scenarios.draws import Sheet
from flexmarl.simulator.scenarios.scenario import Stages


@dataclass(frozen=True, slots=True)
class Broken:
    invariant: str
    evidence: str


def broken(watch: RunWatch) -> list[Broken]:
    """Return the invariants that do not hold, each with the first evidence against it."""
    found = []
    for invariant in INVARIANTS:
        evidence = next(invariant(watch), None)
        if evidence is not None:
            found.append(Broken(invariant.__name__, evidence))
    return found


def tokens_are_conserved(watch: RunWatch) -> Iterator[str]:
    """What engines made is what the turns have: answered, cancelled, or on their way."""
    made, restarted, truncated = watch.made_whole(), False, 0
    for turn in watch.turns.values():
        made += turn.engine.made_of(turn) if turn.engine is not None else turn.made
        restarted = restarted or turn.follow == "restart_turn"
        truncated += (1 + len(turn.segments) // 2) * (turn.follow != "")  # whole tokens go on under newer weights
    engines = watch.cluster.hosting.made()
    slack = 1e-6 * engines + truncated + 0.5
    if made > engines + slack or (made < engines - slack and not restarted):
        yield f"engines made {engines:.1f} tokens, turns have {made:.1f}"


def answered_turns_are_told_once(watch: RunWatch) -> Iterator[str]:
    """A finished episode's rows are the turns that it asked, numbered without a gap, with the tokens that were made."""
    replies: dict[EpisodeKey, Counter[tuple[str, int, int]]] = {}
    for turn in watch.turns.values():
        assert isinstance(turn, EpisodeTurn)
        replies.setdefault(turn.episode.key, Counter())[turn.role, turn.number, turn.reply] += 1
    for own in watch.whole_episodes():
        assert isinstance(own.script, Sheet)
        replies.setdefault(own.key, Counter()).update(_rows_of(watch.cluster.scenario.workload.stages, own.script))
    for _, fact, outcome in watch.settled():
        if outcome.status is not EpisodeStatus.FINISHED:
            continue
        rows = Counter((row.role, row.turn, row.tokens) for row in outcome.samples)
        name = f"draw {fact.draw}, member {outcome.member}, attempt {outcome.attempt}"
        asked = replies.get((fact.draw, outcome.member, outcome.attempt, outcome.replaced), Counter())
        if set(rows) - set(asked) or max(rows.values(), default=1) > 1:
            yield f"{name}: rows that nobody asked for, or twice: {sorted(rows - asked)[:3]}"
        if left_out := sorted(set(asked) - set(rows)):
            yield f"{name}: nothing was told of {left_out[:3]}"
        for role in {row.role for row in outcome.samples}:
            numbers = sorted(row.turn for row in outcome.samples if row.role == role)
            if numbers != list(range(len(numbers))):
                yield f"{name}: the turns of {role} are numbered {numbers}"


def _rows_of(stages: Stages, sheet: Sheet) -> dict[tuple[str, int, int], int]:
    """Return the rows that an episode comes to which is played as a whole: one per role, of all its replies."""
    tokens = {role: 0 for stage in stages for role in stage}
    for number, replies in enumerate(sheet.replies.tolist()):
        for role, reply in zip(stages[number % len(stages)], replies, strict=False):
            tokens[role] += int(reply)
    return {(role, 0, made): 1 for role, made in tokens.items()}


def episodes_take_their_time(watch: RunWatch) -> Iterator[str]:
    """Nobody finishes before its environment and its replies can be done by the quickest device."""
    scenario = watch.cluster.scenario
    quickest = min([scenario.machine.engine.token, *(kind.engine.token for kind in scenario.machine.kinds)])
    quickest *= prod(min(1.0, slow.factor) for slow in scenario.faults.slow)
    spoken: dict[int, Counter[str]] = {}
    for turn in watch.turns.values():
        assert isinstance(turn, EpisodeTurn)
        spoken.setdefault(id(turn.episode), Counter())[turn.role] += turn.reply
    least: dict[EpisodeKey, float] = {}
    for own in watch.episodes:
        longest = own.script.replies.max(axis=1).sum() if isinstance(own.script, Sheet) else 0
        longest = max([longest, *spoken.get(id(own), Counter()).values()])
        needed = float(sum(own.script.waits)) + own.script.reward_s + quickest * longest
        least[own.key] = min(needed, least.get(own.key, needed))  # of several, where its command was taken twice
    for _, fact, outcome in watch.settled():
        took = outcome.duration_s
        needed = least[fact.draw, outcome.member, outcome.attempt, outcome.replaced] if outcome.samples else 0.0
        if took < needed - 1e-6:
            name = f"draw {fact.draw}, member {outcome.member}, attempt {outcome.attempt}"
            yield f"{name} took {took:.3f} s; its environment and its longest replies alone take {needed:.3f} s"


def slots_are_those_of_turns(watch: RunWatch) -> Iterator[str]:
    """A slot that an engine counts as taken is that of a turn under way; whoever waits has none."""
    engines = watch.cluster.playing.engines
    counts: Counter[tuple[int, bool]] = Counter()
    for turn in watch.turns.values():
        if turn.engine is not None:
            counts[id(turn.engine), turn.phase in ("prompt", "reply")] += 1
    for lease, engine in engines.items() if not watch.whole else ():
        for holds, says in ((True, engine.running), (False, engine.waiting)):
            if counts[id(engine), holds] != says:
                what = "run" if holds else "wait"
                yield f"engine {lease} says that {says} turns {what}, of those asked {counts[id(engine), holds]} do"
    playing = watch.cluster.playing
    for policy, taken, held in playing.taken() if isinstance(playing, EpisodePlaying) else ():
        if abs(taken - held) > 1e-6:
            yield f"turns of {policy or 'nobody'} have {taken:g} slots taken, {held:g} are under way"


def groups_settle_once(watch: RunWatch) -> Iterator[str]:
    """Every member of a draw has one outcome per command."""
    seen: set[tuple[int, int, Origin, int]] = set()
    for now, fact, outcome in watch.settled():
        key = fact.command_no, fact.draw, fact.origin, outcome.member
        if key in seen:
            yield f"member {outcome.member} of draw {fact.draw} settled a second time at {now:.3f} s"
        seen.add(key)


def versions_are_allowed(watch: RunWatch) -> Iterator[str]:
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


def _last_makers(watch: RunWatch) -> dict[tuple[int, int, int, bool, str, int], set[int]]:
    """Return which weights made the end of each reply; of several, where its command was taken twice."""
    found: dict[tuple[int, int, int, bool, str, int], set[int]] = {}
    for turn in watch.turns.values():
        if isinstance(turn, EpisodeTurn):
            found.setdefault((*turn.episode.key, turn.role, turn.number), set()).add(turn.version)
    return found


def engines_hold_one_version(watch: RunWatch) -> Iterator[str]:
    """Engines that serve one version at a time have forgotten an older one before they hold a newer one."""
    held: dict[tuple[int, str, str], int] = {}
    for now, fact in watch.facts if watch.cluster.driver.core.plan.engines.one_version else ():
        if isinstance(fact, e.PolicyUnloaded):
            held.pop((fact.lease_id, fact.incarnation, fact.policy), None)
        elif isinstance(fact, e.WeightsServed):
            older = held.setdefault((fact.lease_id, fact.incarnation, fact.policy), fact.version)
            if older != fact.version:
                yield f"engine {fact.lease_id} has {fact.policy} {older} and {fact.version} at {now:.3f} s"


def rows_are_conserved(watch: RunWatch) -> Iterator[str]:
    """A row is cut once at most, but to be trained again; it is trained, on its way, or recorded, with a cause."""
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
            if command.replayed:
                size[command.ref.policy, command.ref.no] = 0
                continue
            size[command.ref.policy, command.ref.no] = len(command.samples)
            cut.update((row.draw, row.member, row.attempt, row.role, row.turn) for row in command.samples)
    twice = next((row for row, count in cut.items() if count > 1), None)
    if twice is not None:
        yield f"row {twice} is in two micro-batches"
    stray = next((row for row in cut if (Origin.TRAIN, row) not in told), None)
    if stray is not None:
        yield f"row {stray} was cut and never told"
    trained = sum(size[key] for key in trained_in(watch))
    if trained != state.totals.samples_trained:
        yield f"{trained} rows are in steps that were committed, the core counts {state.totals.samples_trained}"
    waiting = sum(len(rows) for cohort in state.cohorts for group in cohort.pending for rows in group.rows.values())
    recorded = state.totals.samples_recorded
    left = len(told) - len(cut) - waiting - recorded
    if left:
        yield f"{len(told)} rows told, {len(cut)} cut, {waiting} wait, {recorded} recorded: {left} left"


def commands_are_carried_out_or_void(watch: RunWatch) -> Iterator[str]:
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
    if c.COMMAND_KINDS[command.kind].answered_by_number:
        return command.kind, no, 0
    match command:
        case c.BindPolicy():
            return command.kind, command.policy, command.lease_id
        case c.Accumulate():
            return command.kind, command.policy, command.micro_batch
        case c.OptimizerStep():
            return command.kind, command.policy, command.next_version
        case c.WriteCheckpoint():
            return command.kind, command.label, command.step
    return None


_BY_NUMBER = {about.answer: kind for kind, about in c.COMMAND_KINDS.items() if about.answered_by_number}
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


def devices_have_one_lease(watch: RunWatch) -> Iterator[str]:
    """No device is held twice at once, but by a trainer beside an engine."""
    held = sorted(
        (own.device_id, own.since, own.until, lease)
        for lease, own in watch.cluster.trace.held.items()
        if not own.beside
    )
    for one, other in pairwise(held):
        if one[0] == other[0] and other[1] < one[2]:
            yield f"{one[0]} is leased as {one[3]} until {one[2]:.3f} s and as {other[3]} from {other[1]:.3f} s"


def device_time_adds_up(watch: RunWatch) -> Iterator[str]:
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


INVARIANTS: tuple[Callable[[RunWatch], Iterator[str]], ...] = (
    tokens_are_conserved,
    answered_turns_are_told_once,
    episodes_take_their_time,
    slots_are_those_of_turns,
    groups_settle_once,
    versions_are_allowed,
    engines_hold_one_version,
    rows_are_conserved,
    rows_are_within_their_bound,
    micro_batches_are_trained_once,
    steps_train_their_groups,
    commands_are_carried_out_or_void,
    devices_have_one_lease,
    device_time_adds_up,
)
