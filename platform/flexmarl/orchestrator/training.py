"""The trainer's side: policies bound, micro-batches accumulated, steps committed, checkpoints written.

Invariants: an accumulator belongs to one (version, incarnation) and holds a known set of micro-batches; a step names
exactly the micro-batches cut for its policy in the open cohort and is issued only when the cohort is settled and all
of them are accumulated under the live epoch. Whenever the accumulator's content is in doubt - child lost, command
refused - the policy is bound anew at its committed version and all its micro-batches are accumulated again, with the
same numbers.
"""

from flexmarl.contracts.commands import Accumulate, BindPolicy, OptimizerStep, WriteCheckpoint
from flexmarl.contracts.events import CheckpointWritten, MicroBatchAccumulated, PolicyBound, StepCommitted
from flexmarl.contracts.rulings import RulingKind
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout import wire_pins
from flexmarl.orchestrator.state import Cohort, LeaseState, PolicyCohort, PolicyState, TrainTotals


def drive_trainer(ctx: Context) -> None:
    """Ask the trainer for everything it can do now."""
    lease = ctx.state.trainer()
    if lease is None:
        return
    for name, policy in ctx.state.policies.items():
        if not policy.accumulator:
            _bind(ctx, lease, name, policy)
    cohort = ctx.state.cohort
    if cohort is not None:
        for name, own in cohort.policies.items():
            policy = ctx.state.policies[name]
            if not own.stepped and policy.accumulator:
                _accumulate(ctx, lease, cohort, name)
                _step(ctx, lease, cohort, name)
    if ctx.state.checkpoints:
        _checkpoints(ctx, lease)


def _bind(ctx: Context, lease: LeaseState, name: str, policy: PolicyState) -> None:
    key = f"bind:{name}"
    # The policy's own back-off holds every attempt to bring it back, whichever of its commands failed.
    if ctx.wanted(key) and ctx.wanted(f"policy:{name}"):
        command = BindPolicy(lease_id=lease.lease_id, policy=name, version=policy.version, digest=policy.digest or None)
        ctx.issue(key, command, lease_id=lease.lease_id, version=-1 if policy.version is None else policy.version)


def _accumulate(ctx: Context, lease: LeaseState, cohort: Cohort, name: str) -> None:
    """Hand over the cut micro-batches; an ordered run hands over one at a time, so that sums keep their order."""
    own, policy = cohort.policies[name], ctx.state.policies[name]
    if own.accumulated == len(own.micro_batches):
        return
    for micro_batch in own.micro_batches:
        if micro_batch.accumulated:
            continue
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
        if ctx.plan.ordered:
            return


def _step(ctx: Context, lease: LeaseState, cohort: Cohort, name: str) -> None:
    own, policy = cohort.policies[name], ctx.state.policies[name]
    key = f"step:{name}"
    if cohort.settled_at is None or own.accumulated < len(own.micro_batches) or not ctx.wanted(key):
        return
    if not own.micro_batches:
        own.stepped = own.null_step = True
        text = f"{name}: no row to train on in step {cohort.no + 1}, the version stays"
        ctx.note(text, target=f"policy:{name}")
        ctx.rule(RulingKind.NULL_STEP, text, policy=name, cohort=cohort.no)
        return
    assert policy.version is not None
    command = OptimizerStep(
        lease_id=lease.lease_id,
        policy=name,
        accumulator=policy.accumulator,
        micro_batches=tuple(micro_batch.no for micro_batch in own.micro_batches),
        next_version=policy.version + 1,
        step=cohort.no,
        learning_rate=ctx.plan.learning_rate(name, cohort.no),
    )
    ctx.issue(key, command, lease_id=lease.lease_id)


def _checkpoints(ctx: Context, lease: LeaseState) -> None:
    if not all(policy.accumulator for policy in ctx.state.policies.values()):
        return
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
    policy.accumulator = ""
    ctx.withdraw(f"bind:{name}")
    ctx.withdraw(f"step:{name}")
    ctx.withdraw_prefix(f"accumulate:{name}:")
    cohort = ctx.state.cohort
    own = cohort.policies.get(name) if cohort is not None else None
    if own is not None and not own.stepped:
        own.accumulated = 0
        own.totals = TrainTotals()
        for micro_batch in own.micro_batches:
            micro_batch.accumulated = False


def on_policy_bound(ctx: Context, event: PolicyBound) -> None:
    """A trainer holds a policy. Version 0 counts whoever made it; the accumulator only if its child still lives."""
    policy = ctx.state.policies.get(event.policy)
    if policy is None:
        return
    if policy.version is None:
        policy.version, policy.digest = event.version, event.digest
        for name, value in event.facts.items():
            ctx.metric(f"fact/{name}", value, ctx.state.step, event.policy)
    lease = ctx.state.leases.get(event.lease_id)
    live = lease is not None and lease.incarnation == event.incarnation and not lease.releasing
    if live and not policy.accumulator and policy.version == event.version:
        policy.accumulator = f"{event.version}:{event.incarnation}"
        ctx.answered(f"bind:{event.policy}")
        if event.policy not in ctx.plan.trainable:
            ctx.state.failures.pop(f"policy:{event.policy}", None)


def on_accumulated(ctx: Context, event: MicroBatchAccumulated) -> None:
    """Count a micro-batch into its policy's accumulator, once, and only into the live one."""
    cohort, policy = ctx.state.cohort, ctx.state.policies.get(event.policy)
    own = cohort.policies.get(event.policy) if cohort is not None else None
    if cohort is None or own is None or policy is None or own.stepped or event.accumulator != policy.accumulator:
        return
    for micro_batch in own.micro_batches:
        if micro_batch.no == event.micro_batch and not micro_batch.accumulated:
            micro_batch.accumulated = True
            own.accumulated += 1
            ctx.answered(f"accumulate:{event.policy}:{event.micro_batch}")
            _add_stats(own, event)
    if cohort.settled_at is None and all(o.accumulated == len(o.micro_batches) for o in cohort.policies.values()):
        cohort.idle_since = ctx.now


def _add_stats(own: PolicyCohort, event: MicroBatchAccumulated) -> None:
    totals, stats = own.totals, event.stats
    totals.rows += stats.rows
    totals.tokens += stats.tokens
    totals.z += stats.z
    totals.loss_sum += stats.loss_sum
    totals.entropy_sum += stats.entropy_sum
    totals.kl_engine_sum += stats.kl_engine_sum
    totals.logprob_gap_sum += stats.logprob_gap_sum
    totals.clipped_sum += stats.clipped_sum
    totals.seconds += stats.seconds


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
    same_life = event.accumulator == policy.accumulator
    incarnation = event.accumulator.partition(":")[2]
    if not same_life:
        # The rows are applied: nothing of this cohort may be accumulated again, and the trainer must move up.
        unbind(ctx, event.policy)
    own.stepped, own.null_step = True, event.null_step
    own.grad_norm, own.learning_rate = event.grad_norm, event.learning_rate
    own.step_seconds = event.seconds
    state.samples_trained += sum(micro_batch.rows for micro_batch in own.micro_batches)
    policy.version, policy.digest = event.version, event.digest
    ctx.answered(f"step:{event.policy}")
    ctx.state.failures.pop(f"policy:{event.policy}", None)
    if same_life:
        policy.accumulator = f"{event.version}:{incarnation}"


def _late_step(ctx: Context, event: StepCommitted, policy: PolicyState) -> None:
    """Count a step that was committed while its run ended: its rows are applied, the next attempt starts from it."""
    rows = ctx.state.stepping.pop(event.policy, None)
    if rows is not None:
        ctx.state.samples_trained += rows
        policy.version, policy.digest = event.version, event.digest


def on_checkpoint_written(ctx: Context, event: CheckpointWritten) -> None:
    """Forget a wish that is fulfilled; a newer one of the same label goes out next."""
    key = f"checkpoint:{event.label}"
    on_its_way, wanted = ctx.state.outstanding.get(key), ctx.state.checkpoints.get(event.label)
    if on_its_way is not None and on_its_way.version == event.step:
        ctx.answered(key)
    if wanted is None or wanted.step != event.step:
        return
    del ctx.state.checkpoints[event.label]
    if event.label == "best":
        ctx.note(f"best vector so far: after step {event.step}", target=f"checkpoint:best:{event.step}")
