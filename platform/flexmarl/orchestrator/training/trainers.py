"""The trainers' side: micro-batches accumulated, steps committed, checkpoints written. `binding` says where.

Invariants: an accumulator belongs to one (version, incarnation) and holds a known set of micro-batches; a step names
exactly the micro-batches cut for its policy in the open cohort and is issued only when the cohort is settled and all
of them are accumulated under the live epoch. Whenever the accumulator's content is in doubt - child lost, command
refused - the policy is bound anew at its committed version and all its micro-batches are accumulated again, with the
same numbers.
"""

from collections.abc import Iterator
from math import ceil

from flexmarl.contracts.commands import Accumulate, OptimizerStep, WriteCheckpoint
from flexmarl.contracts.events import CheckpointWritten, MicroBatchAccumulated, PolicyBound, StepCommitted
from flexmarl.contracts.rulings import RulingKind
from flexmarl.orchestrator.allocation.binding import bound_to, came_back, drive_binding, on_gang_s, took_work
from flexmarl.orchestrator.allocation.shared_devices import drive_turns, given_now
from flexmarl.orchestrator.cohorts.admission import abandon_older
from flexmarl.orchestrator.cohorts.credit import unfilled
from flexmarl.orchestrator.cohorts.cutting import part_complete
from flexmarl.orchestrator.cohorts.overlapping import carries, fill_pins, open_rows
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout.group_commands import wire_pins
from flexmarl.orchestrator.state.cohort import Cohort, MicroBatchState, PolicyCohort
from flexmarl.orchestrator.state.fleet import LeaseState
from flexmarl.orchestrator.state.policy import PolicyState
from flexmarl.orchestrator.state.totals import TrainTotals
from flexmarl.orchestrator.training.checkpoint_retention import note_written

AHEAD_S = 0.2
MOST_AHEAD = 8
"""Where policies move, a device is handed one micro-batch, and behind it as many as last for so long, but one at least
and no more than this: it never waits for an answer to arrive. What waits at a device is withdrawn when its policy is
suspended, and goes elsewhere with it."""


def drive_trainer(ctx: Context) -> None:
    """Ask the trainers for everything they can do now."""
    due = _due_work(ctx) if ctx.plan.trainers.allocates else {}
    if ctx.plan.trainers.colocated:
        drive_turns(ctx, due)
    drive_binding(ctx, due)
    if ctx.state.cohort is not None:
        for name in _in_turn(ctx, ctx.state.cohort):
            drive_policy(ctx, ctx.state.cohort, name)
    if ctx.state.checkpoints:
        _checkpoints(ctx)


def _in_turn(ctx: Context, cohort: Cohort) -> Iterator[str]:
    """Name the policies whose turn it is: all, but in a wavefront, what an episode asks first is finished first."""
    in_turn = ctx.plan.spec.mechanisms.publication.type == "wavefront" and cohort.times.settled_at is not None
    for name, own in cohort.policies.items():
        yield name
        if in_turn and not own.stepped and f"step:{name}" not in ctx.state.outstanding:
            return


def drive_policy(ctx: Context, cohort: Cohort, name: str) -> None:
    """Hand over what one policy can do now."""
    if not cohort.policies[name].stepped and ctx.state.policies[name].accumulator:
        lease = bound_to(ctx.state, name)
        if lease is not None:
            _accumulate(ctx, lease, cohort, name)
        _step(ctx, lease, cohort, name)


def _due_work(ctx: Context) -> dict[str, int]:
    """Name the policies that have something to do for which they need devices -> tokens of it."""
    state = ctx.state
    found = {name: 0 for name in ctx.plan.trainable if not state.policies[name].accumulator}
    if state.cohort is None:
        return found
    for name in _in_turn(ctx, state.cohort):
        own = state.cohort.policies[name]
        if own.stepped:
            continue
        left = [micro_batch.tokens for micro_batch in own.micro_batches if not micro_batch.accumulated]
        if left or f"step:{name}" in state.outstanding or _takes_step(ctx, state.cohort, name):
            found[name] = sum(left)
    return found


def _accumulate(ctx: Context, lease: LeaseState, cohort: Cohort, name: str) -> None:
    """Hand over the cut micro-batches."""
    own, policy = cohort.policies[name], ctx.state.policies[name]
    requested = ctx.state.outstanding.count_about("accumulate", name)
    number = len(own.micro_batches) - own.accumulated - requested
    if ctx.plan.trainers.allocates:
        number = min(number, _ahead(own, policy) - _queued(ctx, lease))
    if number <= 0:
        return
    for micro_batch in _unasked(ctx, name, own, number):
        key = f"accumulate:{name}:{micro_batch.no}"
        if ctx.wanted(key):
            command = Accumulate(
                lease_id=lease.lease_id,
                policy=name,
                micro_batch=micro_batch.no,
                accumulator=policy.accumulator,
                entropy_coef=ctx.plan.entropy_coefficient(cohort.no),
            )
            ctx.issue(key, command, lease_id=lease.lease_id)


def _ahead(own: PolicyCohort, policy: PolicyState) -> int:
    """Say how many micro-batches of a policy its device is handed at once."""
    rows = max([micro_batch.rows for micro_batch in own.micro_batches], default=0)
    tokens = max([micro_batch.tokens for micro_batch in own.micro_batches], default=0)
    takes_s = on_gang_s(policy, rows, tokens)
    return 1 + min(MOST_AHEAD, max(1, ceil(AHEAD_S / takes_s))) if takes_s else 2


def _queued(ctx: Context, lease: LeaseState) -> int:
    """Count the micro-batches that a device was handed and has not done."""
    there = (name for name, policy in ctx.state.policies.items() if policy.placement.gang[:1] == [lease.lease_id])
    return sum(ctx.state.outstanding.count_about("accumulate", name) for name in there)


def _unasked(ctx: Context, name: str, own: PolicyCohort, number: int) -> list[MicroBatchState]:
    """List what is cut and may be handed over, oldest first.

    An ordered run hands over one at a time, so that sums keep their order. Where a cohort is one optimizer step, what
    is new stands at the end, and is looked for from there: the others are on their way.
    """
    if ctx.plan.ordered or not ctx.plan.cutting.one_part:
        left = [micro_batch for micro_batch in gathered(own) if not micro_batch.accumulated]
        return left[:1] if ctx.plan.ordered else left
    found: list[MicroBatchState] = []
    for micro_batch in reversed(own.micro_batches):
        if not micro_batch.accumulated and f"accumulate:{name}:{micro_batch.no}" not in ctx.state.outstanding:
            found.append(micro_batch)
            if len(found) == number:
                break
    return found[::-1]


def gathered(own: PolicyCohort) -> list[MicroBatchState]:
    """List the micro-batches of the optimizer step that is being gathered."""
    waiting = [micro_batch for micro_batch in own.micro_batches if not micro_batch.applied]
    part = min((micro_batch.part for micro_batch in waiting), default=0)
    return [micro_batch for micro_batch in waiting if micro_batch.part == part]


def _step(ctx: Context, lease: LeaseState | None, cohort: Cohort, name: str) -> None:
    """Close a policy's part of a cohort, or of a mini-batch, as soon as it is whole; a step needs its trainer."""
    own, policy = cohort.policies[name], ctx.state.policies[name]
    key, part = f"step:{name}", _whole_part(ctx, cohort, own)
    if part is None or not ctx.wanted(key):
        return
    if not part:
        _nothing_left(ctx, cohort, name, own)
        return
    if cohort.times.settled_at is not None and carries(ctx, own):
        _carry(ctx, cohort, name, own)
        return
    if lease is None:
        return
    own.closed = own.closed or ctx.plan.spec.mechanisms.policy_clock
    assert policy.version is not None
    command = OptimizerStep(
        lease_id=lease.lease_id,
        policy=name,
        accumulator=policy.accumulator,
        micro_batches=tuple(micro_batch.no for micro_batch in part),
        next_version=policy.version + 1,
        step=cohort.no,
        learning_rate=ctx.plan.learning_rate(name, cohort.no),
    )
    ctx.issue(key, command, lease_id=lease.lease_id)


def _takes_step(ctx: Context, cohort: Cohort, name: str) -> bool:
    """Tell whether all that keeps a policy from an optimizer step is that somebody takes it."""
    own = cohort.policies[name]
    return bool(_whole_part(ctx, cohort, own)) and not (cohort.times.settled_at is not None and carries(ctx, own))


def _whole_part(ctx: Context, cohort: Cohort, own: PolicyCohort) -> list[MicroBatchState] | None:
    """Return the micro-batches of the step that is due, none where nothing is left for one; None while it is not."""
    if _gathers_on(ctx, cohort, own) or unfilled(ctx, cohort):
        return None
    part = gathered(own)
    if not (part or cohort.times.settled_at is not None) or not all(micro_batch.accumulated for micro_batch in part):
        return None
    return part if _due(ctx, cohort, own, part) else None


def _gathers_on(ctx: Context, cohort: Cohort, own: PolicyCohort) -> bool:
    """Tell by its counters alone that a policy's step is not due; only where a cohort is one optimizer step."""
    if not ctx.plan.cutting.one_part or own.closed:
        return False
    waits = cohort.times.settled_at is None and not ctx.plan.spec.mechanisms.policy_clock
    return waits or own.accumulated < len(own.micro_batches)


def _due(ctx: Context, cohort: Cohort, own: PolicyCohort, part: list[MicroBatchState]) -> bool:
    """Tell whether no more rows belong into the next step: its part is complete, or the policy's own clock is full."""
    if not part or cohort.times.settled_at is not None or own.closed:
        return True
    if ctx.plan.spec.mechanisms.policy_clock:
        return open_rows(own) >= ctx.plan.spec.batch.min_rows
    return part_complete(ctx, cohort, part[0].part)


def _nothing_left(ctx: Context, cohort: Cohort, name: str, own: PolicyCohort) -> None:
    """End a policy's part of a settled cohort: with a null step when there was no row at all."""
    own.stepped = True
    if own.steps:
        return
    own.null_step = True
    text = f"{name}: no rows in step {cohort.no + 1}; the version stays"
    ctx.note(text, target=f"policy:{name}")
    ctx.rule(RulingKind.NULL_STEP, text, policy=name, cohort=cohort.no)


def _carry(ctx: Context, cohort: Cohort, name: str, own: PolicyCohort) -> None:
    """Keep a gradient of too few rows for the next cohort: the version stays, and so does the rows' own lag."""
    own.stepped = own.carried = True
    least = ctx.plan.spec.batch.min_rows
    text = f"{name}: {open_rows(own)} rows in step {cohort.no + 1}, {least} are needed; they are carried into the next"
    ctx.note(text, target=f"policy:{name}")
    ctx.rule(RulingKind.STEP_CARRIED, text, policy=name, cohort=cohort.no, rows=open_rows(own))


def _checkpoints(ctx: Context) -> None:
    """Have the wanted vectors written, by a trainer that no gang of another one keeps busy."""
    trainers = given_now(ctx, sorted(ctx.state.fleet.trainers(), key=lambda lease: lease.sharing.engine_lease > 0))
    if not trainers or not all(policy.accumulator for policy in ctx.state.policies.values()):
        return
    following = {lease_id for policy in ctx.state.policies.values() for lease_id in policy.placement.gang[1:]}
    lease = next((lease for lease in trainers if lease.lease_id not in following), trainers[0])
    for label, wanted in ctx.state.checkpoints.items():
        key = f"checkpoint:{label}"
        if ctx.wanted(key):
            command = WriteCheckpoint(
                lease_id=lease.lease_id, label=wanted.label, step=wanted.step, pins=wire_pins(wanted.pins)
            )
            ctx.issue(key, command, lease_id=lease.lease_id, version=wanted.step)


def unbind(ctx: Context, name: str) -> None:
    """Give up a policy's accumulator: what it held must be accumulated again into a fresh one."""
    policy = ctx.state.policies[name]
    policy.accumulator = policy.placement.ticket = ""
    ctx.withdraw(f"bind:{name}")
    ctx.withdraw(f"suspend:{name}")
    ctx.withdraw_prefix(f"join:{name}:")
    ctx.withdraw(f"step:{name}")
    ctx.withdraw_prefix(f"accumulate:{name}:")
    for own in _gathering(ctx, name):
        own.totals = TrainTotals()
        for micro_batch in own.micro_batches:
            micro_batch.accumulated = micro_batch.applied
        own.accumulated = sum(micro_batch.accumulated for micro_batch in own.micro_batches)


def _gathering(ctx: Context, name: str) -> list[PolicyCohort]:
    """List the parts of cohorts whose gradients a policy's accumulator holds."""
    cohort, carry = ctx.state.cohort, ctx.state.policies[name].carry
    own = cohort.policies.get(name) if cohort is not None else None
    return [held for held in (own, carry) if held is not None and (not held.stepped or held.carried)]


def on_policy_bound(ctx: Context, event: PolicyBound) -> None:
    """A trainer holds a policy. Version 0 counts whoever made it; the accumulator only if its child still lives."""
    policy = ctx.state.policies.get(event.policy)
    if policy is None:
        return
    if policy.version is None:
        policy.version, policy.digest = event.version, event.digest
        for name, value in event.facts.items():
            ctx.metric(f"fact/{name}", value, ctx.state.step, event.policy)
    lease = ctx.state.fleet.leases.get(event.lease_id)
    live = lease is not None and lease.child.incarnation == event.incarnation and not lease.releasing
    awaited = not policy.accumulator or (event.resumed and policy.placement.ticket)
    if live and awaited and policy.version == event.version and event.lease_id in policy.placement.gang[:1]:
        policy.accumulator, policy.placement.ticket = f"{event.version}:{event.incarnation}", ""
        if event.resumed:
            came_back(policy, event.seconds)
        ctx.answered(f"bind:{event.policy}")
        if event.policy not in ctx.plan.trainable:
            ctx.state.failures.pop(f"policy:{event.policy}", None)


def on_accumulated(ctx: Context, event: MicroBatchAccumulated) -> None:
    """Count a micro-batch into its policy's accumulator, once, and only into the live one."""
    cohort, policy = ctx.state.cohort, ctx.state.policies.get(event.policy)
    own = cohort.policies.get(event.policy) if cohort is not None else None
    if cohort is None or own is None or policy is None or own.stepped or event.accumulator != policy.accumulator:
        return
    micro_batch = _numbered(own, event.micro_batch)
    if micro_batch is not None and not micro_batch.accumulated:
        micro_batch.accumulated = True
        own.accumulated += 1
        ctx.answered(f"accumulate:{event.policy}:{event.micro_batch}")
        own.totals.add(event.stats)
        took_work(policy, event.stats.seconds, event.stats.tokens, event.stats.rows)
    if cohort.times.settled_at is not None or own.accumulated < len(own.micro_batches):
        return
    if all(o.accumulated == len(o.micro_batches) for o in cohort.policies.values()):
        cohort.times.idle_since = ctx.now


def _numbered(own: PolicyCohort, no: int) -> MicroBatchState | None:
    """Find a micro-batch: a policy's are numbered without a gap, so it stands where its number says."""
    place = no - own.micro_batches[0].no if own.micro_batches else -1
    if not 0 <= place < len(own.micro_batches) or own.micro_batches[place].no != no:
        return next((micro_batch for micro_batch in own.micro_batches if micro_batch.no == no), None)
    return own.micro_batches[place]


def on_step_committed(ctx: Context, event: StepCommitted) -> None:
    """Take over the next version. It may come from a trainer that has died since: the commit is the truth."""
    state = ctx.state
    cohort, policy = state.cohort, state.policies.get(event.policy)
    if policy is None or policy.version is None or event.version != policy.version + 1:
        return
    if cohort is None:
        _late_step(ctx, event, policy)
        return
    own = cohort.policies.get(event.policy)
    if own is None or own.stepped:
        return
    part = gathered(own)
    same_life = event.accumulator == policy.accumulator
    incarnation = event.accumulator.partition(":")[2]
    if not same_life:
        # The rows are applied: nothing of this cohort may be accumulated again, and the trainer must move up.
        unbind(ctx, event.policy)
    state.totals.samples_trained += sum(micro_batch.new_rows for micro_batch in part)
    state.totals.rows_replayed += sum(micro_batch.rows for micro_batch in part if micro_batch.replayed)
    state.totals.tokens.delivered += sum(micro_batch.new_tokens for micro_batch in part)
    _applied(own, part, event)
    own.stepped = own.closed or (cohort.times.settled_at is not None and not cohort.pending and not gathered(own))
    policy.version, policy.digest, policy.placement.worked = event.version, event.digest, True
    fill_pins(ctx, event.policy)
    abandon_older(ctx, event.policy)
    ctx.answered(f"step:{event.policy}")
    ctx.state.failures.pop(f"policy:{event.policy}", None)
    if same_life:
        policy.accumulator = f"{event.version}:{incarnation}"


def _applied(own: PolicyCohort, part: list[MicroBatchState], event: StepCommitted) -> None:
    """Close the books of an optimizer step."""
    for micro_batch in part:
        micro_batch.accumulated = micro_batch.applied = True
    own.accumulated = sum(micro_batch.accumulated for micro_batch in own.micro_batches)
    own.steps += 1
    own.null_step = event.null_step
    own.step.grad_norm, own.step.learning_rate = event.grad_norm, event.learning_rate
    own.step.seconds += event.seconds
    own.trained.add(own.totals)
    own.totals = TrainTotals()


def _late_step(ctx: Context, event: StepCommitted, policy: PolicyState) -> None:
    """Count a step that was committed while its run ended: its rows are applied, the next attempt starts from it."""
    found = ctx.state.lifecycle.ending.uncertain_rows.pop(event.policy, None)
    if found is not None:
        rows, tokens = found
        ctx.state.totals.samples_trained += rows
        ctx.state.totals.tokens.take_back(tokens)
        ctx.state.totals.rows_replayed += ctx.state.lifecycle.ending.uncertain_replayed.pop(event.policy, 0)
        policy.version, policy.digest = event.version, event.digest


def on_checkpoint_written(ctx: Context, event: CheckpointWritten) -> None:
    """Forget a wish that is fulfilled; a newer one of the same label goes out next."""
    note_written(ctx, event)
    key = f"checkpoint:{event.label}"
    on_its_way, wanted = ctx.state.outstanding.get(key), ctx.state.checkpoints.get(event.label)
    if on_its_way is not None and on_its_way.version == event.step:
        ctx.answered(key)
    if wanted is None or wanted.step != event.step:
        return
    del ctx.state.checkpoints[event.label]
    if event.label == "best" and ctx.state.history.best[:1] and ctx.state.history.best[0][0] == event.step:
        ctx.note(f"best vector so far: after step {event.step}", target=f"checkpoint:best:{event.step}")
