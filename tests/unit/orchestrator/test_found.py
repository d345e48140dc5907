"""Broken promises of the core that random mixes of mechanisms found, each as a run that shows it."""

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.asking import account, deliver_all, freeze, until
from tests.unit.orchestrator.fake_cluster import make_spec, started


def engine_of(cluster):
    return next(own for own in cluster.core.state.fleet.leases.values() if own.use is e.DeviceUse.ENGINE)


def held(cluster):
    """What the engine's child really serves of each policy."""
    return {name: sorted(own) for name, own in cluster.children[engine_of(cluster).lease_id].holds.items()}


def test_a_load_that_was_withdrawn_costs_no_version_that_somebody_is_served_by():
    """A drain hung: its evaluation was pinned to a version that a late load had pushed out of the engine."""
    delayed = {"mechanisms__publication": "delayed", "mechanisms__lag_policy__bound": 1}
    cluster = started(make_spec(**delayed, evaluation__every_steps=1), seed=3)
    cluster.run(until=lambda x: x.core.state.evaluation is not None and x.core.state.step >= 1)
    state, engine = cluster.core.state, engine_of(cluster)
    child = cluster.children[engine.lease_id]
    pins = state.evaluation.pins
    assert all(pin.version in child.holds[name] for name, pin in pins.items())
    first = dict(child.orders)
    for name in pins:
        stray = next(c for c in cluster.commands("load_weights") if c.policy == name and c.version == 0)
        assert cluster.act(stray, child, first[name] - 1) == "superseded"
    cluster.tell(e.RunVerb(verb=Verb.PAUSE, mode=PauseMode.DRAIN))
    until(cluster, RunStatus.PAUSED)
    cluster.verb(Verb.RESUME)
    assert until(cluster, RunStatus.COMPLETED).core.state.step == 4
    account(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_every_load_names_what_the_engine_goes_on_serving(seed):
    """A run could not go on: of two versions an engine held, the one that made room was the one still pinned."""
    lagging = {"mechanisms__lag_policy__bound": 4, "evaluation__every_steps": 1, "budget__train_steps": 8}
    cluster = started(make_spec(**lagging), seed=seed)
    for step in (1, 3, 5):
        cluster.run(until=lambda x, step=step: x.core.state.step >= step)
        freeze(cluster)
        until(cluster, RunStatus.PAUSED)
        deliver_all(cluster)
        cluster.verb(Verb.RESUME)
        until(cluster, RunStatus.RUNNING)
        pinned = {name: pin.version for own in cluster.core.state.cohorts if own.open for name, pin in own.pins.items()}
        assert all(version in held(cluster)[name] for name, version in pinned.items())
    until(cluster, RunStatus.COMPLETED)
    account(cluster)


def test_surplus_that_is_cancelled_holds_no_version_on_the_engines():
    """A drain hung: a group that had played on and was cancelled then still pinned its old vector."""
    spec = make_spec(
        mechanisms__publication="delayed",
        mechanisms__lag_policy__bound=2,
        mechanisms__redundancy={"type": "extra_groups", "extra": 3, "surplus": "continue"},
        batch__rollout_groups=1,
    )
    for seed in range(6):
        cluster = started(spec, seed=seed)
        cluster.held_draws = {0}
        cluster.run(until=lambda x: any(0 in own.older for own in x.core.state.cohorts))
        cluster.tell(e.RunVerb(verb=Verb.PAUSE, mode=PauseMode.DRAIN))
        until(cluster, RunStatus.PAUSED)
        assert 0 in cluster.core.state.backlog.cancelled
        cluster.held_draws = set()
        cluster.verb(Verb.RESUME)
        until(cluster, RunStatus.COMPLETED)
        account(cluster)


@pytest.mark.parametrize("kind", ["mini_batch", "policy_clock"])
def test_a_step_that_commits_while_the_run_is_killed_counts_before_its_cohort_is_settled(kind):
    """Its rows were not counted and its version was not known: a retry made the same version twice."""
    changes = {
        "mini_batch": {
            "mechanisms__trainer_protocol": "mini_batch",
            "batch__mini_batches": 3,
            "mechanisms__lag_policy__bound": 2,
        },
        "policy_clock": {"mechanisms__policy_clock": True, "batch__min_rows": 12},
    }[kind]
    cluster = started(make_spec(**changes), seed=4)
    cluster.held_draws = {5}
    cluster.run(until=lambda x: any(isinstance(fact, e.StepCommitted) for fact in x.inbox))
    assert cluster.core.state.cohort.times.settled_at is None
    cluster.verb(Verb.KILL)
    deliver_all(cluster)
    account(cluster)
    cluster.held_draws = set()
    cluster.verb(Verb.RETRY)
    until(cluster, RunStatus.COMPLETED)
    account(cluster)


def test_nobody_waits_for_surplus_behind_the_last_step():
    spec = make_spec(
        mechanisms__redundancy={"type": "extra_groups", "extra": 2, "surplus": "continue"},
        mechanisms__lag_policy__bound=1,
        batch__rollout_groups=1,
        budget__train_steps=1,
    )
    cluster = started(spec, seed=2)
    cluster.held_draws = {0, 1}
    until(cluster, RunStatus.COMPLETED)
    assert cluster.metrics["groups/cancelled", "", "sum", 1] == 2
    account(cluster)


@pytest.mark.parametrize("follow", ["continue", "resume", "restart_turn"])
def test_an_engine_that_starts_between_two_steps_of_a_cohort_serves_groups_that_follow(follow):
    """Groups that follow pin no version, and one made on the way is not served: a new engine was given none."""
    spec = make_spec(
        mechanisms__trainer_protocol="mini_batch",
        batch__mini_batches=2,
        mechanisms__lag_policy__bound=3,
        mechanisms__lag_policy__in_flight=follow,
    )
    cluster = started(spec, seed=1)
    cluster.held_draws = {5}
    cluster.run(until=lambda x: x.core.state.cohort is not None and x.core.state.cohort.policies["speaker"].steps)
    lease_id = engine_of(cluster).lease_id
    lost = e.ChildLost(lease_id=lease_id, incarnation=cluster.children[lease_id].incarnation, reason="killed")
    cluster.put("lost", lost)
    cluster.start_child(lease_id)
    deliver_all(cluster)
    cluster.held_draws = set()
    assert until(cluster, RunStatus.COMPLETED).core.state.step == 4
    account(cluster)


@pytest.mark.parametrize("publication", ["cohort", "wavefront"])
@pytest.mark.parametrize("role", ["speaker", "listener"])
def test_a_team_with_an_external_seat_trains_the_others_alone(role, publication):
    other = "listener" if role == "speaker" else "speaker"
    external = {"external": {"url": "https://api.example.org/v1", "model": "big"}}
    spec = make_spec(agents={role: external, other: {}}, mechanisms__publication=publication)
    cluster = until(started(spec, seed=1), RunStatus.COMPLETED)
    account(cluster)
    assert list(cluster.core.state.policies) == [other]
    assert {policy for policy, _ in cluster.trained.values()} == {other}
    assert {key[3] for key in cluster.trained} == {other}
    assert all(list(command.pins) == [other] for command in cluster.commands("play_groups"))


def test_a_cohort_without_a_row_behind_another_is_counted_without_a_further_fact():
    """Nobody came back to it: the fact that closed the cohort before it was the last one."""
    spec = make_spec(
        mechanisms__publication="delayed",
        mechanisms__lag_policy__bound=1,
        evaluation__every_steps=100,
        budget__train_steps=2,
    )
    steps = []
    for seed in range(6):
        cluster = started(spec, seed=seed)
        cluster.run(until=lambda x: len(x.core.state.cohorts) == 2)
        cluster.faults.episode_failure = 1.0
        held = {lease for lease, use in cluster.uses.items() if use is e.DeviceUse.TRAINER}
        cluster.possible = lambda command, own=cluster, held=held: (
            getattr(command, "lease_id", 0) not in held and type(own).possible(own, command)
        )
        cluster.run(until=lambda x: len(x.core.state.cohorts) == 2 and not x.core.state.cohorts[1].open)
        del cluster.possible
        cluster.run(until=lambda x: x.core.state.step >= 1)
        steps.append(cluster.run().core.state.step)
        account(cluster)
    assert steps == [2] * 6
