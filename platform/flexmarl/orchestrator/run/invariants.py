"""What must hold between any two calls of the core.

The core checks itself on every call: what the fact touched, at a cost that does not grow with the run, and where a
status, a cohort or an evaluation begins or ends the run as a whole, by its counters. Tests check the whole tree after
every fact: that the counters are those of the things counted, one by one.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from flexmarl.contracts.decisions import NumberedCommand
from flexmarl.contracts.events import DeviceUse, MicroBatchAccumulated, StepCommitted, WeightsServed
from flexmarl.contracts.status import GOALS, TERMINAL, RunStatus
from flexmarl.contracts.wire import EVALUATION_DRAWS
from flexmarl.orchestrator.plan import Plan
from flexmarl.orchestrator.state.cohort import Cohort, PolicyCohort, playing
from flexmarl.orchestrator.state.fleet import LeaseState
from flexmarl.orchestrator.state.tree import Counters, RunState

_OF_A_POLICY: frozenset[type[Any]] = frozenset({MicroBatchAccumulated, StepCommitted})
_OF_NO_EPISODE: frozenset[type[Any]] = frozenset({WeightsServed, MicroBatchAccumulated})
"""Facts that touch no episode, unless something begins or ends by them: then the run as a whole is checked."""


def check_invariants(plan: Plan, state: RunState) -> None:
    """Raise AssertionError naming the rule that anything in the tree breaks."""
    check_turn(plan, state)
    numbers = [o.no for o in state.outstanding.values()]
    assert numbers == sorted(set(numbers)), "commands on their way are out of order, or two keys share one"
    assert state.outstanding.indexed(), "an index of the commands on their way is wrong"
    for cohort in state.cohorts:
        for name, own in cohort.policies.items():
            _check_numbers(name, own)
    _check_tokens(state)


def _check_tokens(state: RunState) -> None:
    """Check that tokens neither delivered nor lost are those of rows that are settled and not stepped on."""
    parts = [(name, own) for cohort in state.cohorts for name, own in cohort.policies.items()]
    parts += [(name, policy.carry) for name, policy in state.policies.items() if policy.carry is not None]
    cut = {(name, one.no): one.new_tokens for name, own in parts for one in own.micro_batches if not one.applied}
    rows = (row for cohort in state.cohorts for group in cohort.pending for own in group.rows.values() for row in own)
    waiting = 0 if state.lifecycle.status in TERMINAL else sum(cut.values()) + sum(row[-1] for row in rows)
    counted = state.totals.tokens.waiting
    assert counted == waiting, f"{counted} tokens wait by the account, {waiting} in rows"


def check_turn(plan: Plan, state: RunState) -> None:
    """Raise AssertionError naming the rule that the run as a whole breaks."""
    _check_counts(plan, state)
    _check_commands(plan, state)
    _check_life(state)
    if plan.engines.one_version:
        _check_given(state)
    _check_leaving(plan, state)
    _check_places(plan, state)
    _check_homes(plan, state)
    _check_shared(plan, state)
    for cohort in state.cohorts:
        _check_groups(plan, cohort)
    if state.cohort is not None:
        _check_cohort(plan, state, state.cohort)
    if state.evaluation is not None:
        assert all(draw >= EVALUATION_DRAWS for draw in state.evaluation.open), "a training draw in an evaluation"


def check_touched(plan: Plan, state: RunState, event: Any, issued: Sequence[NumberedCommand]) -> None:
    """Raise AssertionError naming the rule that a fact and the commands it led to broke."""
    assert state.outstanding.agrees(), "two keys share a command"
    if issued:
        first, last = state.numbers.command - len(issued), state.numbers.command - 1
        assert (issued[0].no, issued[-1].no) == (first, last), "command numbers have a gap"
    cohort = state.cohort
    if type(event) not in _OF_NO_EPISODE:
        _check_counts(plan, state)
        if cohort is not None:
            _check_groups(plan, cohort)
    said = vars(event)  # a record's own values; asking it for one that it has not is slow
    lease = state.fleet.leases.get(said.get("lease_id", 0))
    if lease is not None:
        _check_lease(lease)
    policy = said.get("policy", "")
    if policy not in state.policies:
        return
    known = state.policies[policy]
    version = known.accumulator.partition(":")[0]
    assert not version or version == str(known.version), f"{policy} accumulates at {version}, not {known.version}"
    if cohort is not None and type(event) in _OF_A_POLICY:
        _check_part(plan, state, cohort, policy)


def _check_counts(plan: Plan, state: RunState) -> None:
    training = evaluating = 0
    if not state.lifecycle.pause.frozen:
        for cohort in state.cohorts:
            training += playing(cohort, plan.members_of(cohort.long_round), state.choice.members)
        evaluating = 0 if state.evaluation is None else playing(state.evaluation, plan.spec.evaluation.attempts)
    _adds_up("training", state.totals.train_episodes, training)
    _adds_up("evaluation", state.totals.eval_episodes, evaluating)


def _adds_up(what: str, counters: Counters, under_way: int) -> None:
    settled = counters.finished + counters.failed + counters.cancelled
    assert counters.proposed == settled + under_way, f"{what} episodes do not add up: {counters}, {under_way} playing"


def _check_given(state: RunState) -> None:
    """Check engines that serve one version: none keeps a second one, and a draw is one engine's."""
    given = Counter(draw for lease in state.fleet.leases.values() for draw in lease.assigned.draws)
    twice = [draw for draw, engines in given.items() if engines > 1]
    assert not twice, f"draws {twice} are played by two engines"
    for lease in state.fleet.leases.values():
        assert not lease.weights.previous, (
            f"{lease.device_id} keeps {lease.weights.previous} beside {lease.weights.held}"
        )


def _check_commands(plan: Plan, state: RunState) -> None:
    assert state.outstanding.agrees(), "two keys share a command"
    newest = next(reversed(state.outstanding.values()), None)
    assert newest is None or 0 < newest.no < state.numbers.command, "a command number from the future"
    for parts in (*state.cohorts, state.evaluation):
        if parts is None:
            continue
        given = parts.older if plan.engines.one_version and isinstance(parts, Cohort) else parts.open
        for key, waiting in Counter(key for draw, key in parts.open.items() if draw in given).items():
            command = state.outstanding.get(key)
            if state.lifecycle.pause.frozen:
                assert command is None, f"{key} is played while the run is frozen"
                continue
            assert command is not None or key in state.failures, f"nobody plays {key}"
            assert command is None or command.left == waiting, f"{key} waits for {command.left}, open are {waiting}"


def _check_life(state: RunState) -> None:
    if state.lifecycle.status in TERMINAL or (
        state.lifecycle.status is RunStatus.PAUSED and not state.lifecycle.pause.frozen
    ):
        assert state.cohort is None, f"a cohort is open while {state.lifecycle.status}"
        assert state.evaluation is None, f"an evaluation is open while {state.lifecycle.status}"
    if state.lifecycle.status is RunStatus.PAUSED:
        assert all(o.kind == "host_lease" for o in state.outstanding.values()), "a paused run has work on its way"
    _check_attempts(state)
    if state.lifecycle.status in TERMINAL:
        hosts = {"host_lease"}
        assert all(o.kind in hosts for o in state.outstanding.values()), "an ended run has commands on their way"
        assert all(lease.releasing for lease in state.fleet.leases.values()), "an ended run keeps a lease"
    for lease in state.fleet.leases.values():
        _check_lease(lease)
    alive = {lease.child.incarnation for lease in state.fleet.leases.values() if lease.use is DeviceUse.TRAINER}
    for name, policy in state.policies.items():
        version, _, incarnation = policy.accumulator.partition(":")
        if policy.accumulator:
            assert incarnation in alive, f"{name} has an accumulator in a dead trainer"
            assert version == str(policy.version), f"{name} accumulates at {version}, committed is {policy.version}"


def _check_leaving(plan: Plan, state: RunState) -> None:
    """Check that nothing is asked of an engine that leaves its fleet."""
    for lease in state.fleet.leases.values():
        if lease.membership == "leaving":
            asked = [name for name in plan.policies if f"load:{lease.lease_id}:{name}" in state.outstanding]
            assert not asked, f"the engine on {lease.device_id} leaves and loads {asked}"


def _check_homes(plan: Plan, state: RunState) -> None:
    residents: dict[int, list[str]] = {}
    for name, policy in state.policies.items():
        placement = policy.placement
        assert not placement.ticket or policy.accumulator, f"{name} is suspended without an accumulator"
        assert len(set(placement.gang)) == len(placement.gang), f"{name} has a device twice: {placement.gang}"
        for lease_id in placement.gang if name in plan.trainable else ():
            residents.setdefault(lease_id, []).append(name)
    places = plan.spec.resources.trainer_policies or len(state.policies)
    for lease_id, names in residents.items():
        lease = state.fleet.leases.get(lease_id)
        assert lease is not None, f"{names} are on lease {lease_id}, which is gone"
        assert lease.child.incarnation, f"{names} are on {lease.device_id}, where nobody answers"
        assert len(names) <= places, f"{lease.device_id} has no place for {names}"
        shared = [name for name in names if len(state.policies[name].placement.gang) > 1]
        assert not shared or len(names) == 1, f"{lease.device_id} is a gang's of {shared} and has {names}"


def _check_shared(plan: Plan, state: RunState) -> None:
    """Check that of an engine and a trainer on one device never both hold something or are about to."""
    for trainer in state.fleet.leases.values() if plan.trainers.colocated else ():
        engine = state.fleet.leases.get(trainer.sharing.engine_lease)
        if trainer.use is not DeviceUse.TRAINER or engine is None:
            continue
        where, names = engine.device_id, plan.trainable
        there = [name for name in names if trainer.lease_id in state.policies[name].placement.gang]
        busy = bool(engine.weights.held or engine.weights.previous) or any(
            f"load:{engine.lease_id}:{n}" in state.outstanding for n in names
        )
        assert not (there and busy), f"{where} holds {there} for training, and its engine {engine.weights.held}"
        assert not (engine.sharing.asleep and busy), f"the engine on {where} sleeps and holds {engine.weights.held}"
        assert engine.device_id == trainer.device_id, f"{trainer.device_id} is not beside {where}"


def _check_lease(lease: LeaseState) -> None:
    assert lease.child.incarnation or not lease.weights.held, "a lost child holds weights"


def _check_places(plan: Plan, state: RunState) -> None:
    for lease in state.fleet.leases.values():
        places = 0 if plan.engines.places is None or lease.use is not DeviceUse.ENGINE else plan.engines.places
        assert len(lease.weights.assigned) <= places, f"{lease.device_id} has no place for {lease.weights.assigned}"
        assert not set(lease.weights.assigned) & set(lease.weights.leaving), (
            f"{lease.device_id} shall serve and forget {lease.weights.assigned}"
        )
        assert plan.engines.places is None or lease.weights.held.keys() <= set(lease.weights.assigned), (
            f"{lease.device_id} holds {lease.weights.held}"
        )
        assert lease.child.incarnation or not (lease.weights.assigned or lease.weights.leaving), (
            "a lost child serves something"
        )


def _check_attempts(state: RunState) -> None:
    assert not (state.lifecycle.attempt.open and state.lifecycle.status in TERMINAL), "an ended run has an open attempt"
    assert state.lifecycle.attempt.no or state.lifecycle.status is RunStatus.DRAFT, (
        "a run that was started has no attempt"
    )
    inactive = state.lifecycle.status in (
        *TERMINAL,
        RunStatus.DRAFT,
        RunStatus.PAUSED,
        RunStatus.PAUSING,
        RunStatus.STOPPING,
    )
    assert state.lifecycle.attempt.open or inactive, f"a run is {state.lifecycle.status} without an attempt"
    requested = state.lifecycle.requested_verb
    if requested is not None and requested.open:
        assert state.lifecycle.status not in (*GOALS[requested.verb], *TERMINAL), (
            f"{requested.verb} has no outcome while {state.lifecycle.status}"
        )


def _check_groups(plan: Plan, cohort: Cohort) -> None:
    settled = cohort.groups.kept + cohort.groups.refused + cohort.groups.dropped
    assert settled + len(cohort.open) == cohort.size, "a group of the cohort has no fate"
    settles = not cohort.open and (cohort.filled or cohort.times.settled_at is not None)
    assert (cohort.times.settled_at is not None) == settles, "settled and open at once"


def _check_cohort(plan: Plan, state: RunState, cohort: Cohort) -> None:
    """Check the cohort that is trained: later ones are not cut."""
    assert not (cohort.pending and cohort.times.settled_at is not None), "rows of a settled cohort were not cut"
    for later in state.cohorts[1:]:
        assert cohort.times.settled_at is not None or plan.lag.bounded, (
            "a cohort started before the one before it was settled"
        )
        for own in later.policies.values():
            assert not own.micro_batches, "a later cohort is cut"
    for name in cohort.pins:
        _check_part(plan, state, cohort, name)


def _check_numbers(name: str, own: PolicyCohort) -> None:
    """Check each micro-batch of a policy: the counters, which a single fact moves, are about these."""
    assert own.accumulated == sum(m.accumulated for m in own.micro_batches), f"{name} counts wrongly"
    assert all(m.accumulated for m in own.micro_batches if m.applied), f"{name} stepped on what it does not hold"
    numbers = [m.no for m in own.micro_batches]
    assert numbers == sorted(set(numbers)), f"{name} has micro-batches out of order"


def _check_part(plan: Plan, state: RunState, cohort: Cohort, name: str) -> None:
    mechanisms, pin = plan.spec.mechanisms, cohort.pins[name]
    own, version = cohort.policies.get(name), state.policies[name].version
    assert version is not None
    ahead = 0 if own is None else own.steps
    # Surplus that plays on may open the next cohort before the steps that its publication would wait for.
    early = mechanisms.publication.type == "delayed" or mechanisms.redundancy.goes_on
    if not early and not plan.lag.bounded:
        assert version == pin.version + ahead, f"{name} is at {version}, its cohort pins {pin.version}"
    if own is None:
        return
    rule = plan.spec.lag_policy_of(name)
    allowed = rule.at_cut == "train" or own.own_lag <= rule.bound
    assert allowed, f"{name} would train on rows {own.own_lag} versions old, {rule.bound} are allowed"
    assert 0 <= own.accumulated <= len(own.micro_batches), f"{name} counts wrongly"
    by_clock = mechanisms.policy_clock and own.closed
    assert not own.stepped or cohort.times.settled_at is not None or by_clock, f"{name} stepped too early"
    last = own.micro_batches[-1].no if own.micro_batches else -1
    assert last < state.policies[name].next_micro_batch, "an unknown micro-batch"
