"""A fleet that follows measured rates: what the core measures, what it asks for and gives back, and what it says."""

import pytest

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.events import DeviceUse, PauseMode, RunVerb, SurplusRecalled, Verb
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator import Orchestrator
from flexmarl.orchestrator.pool.device_requests import JOIN
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec, started
from tests.unit.orchestrator.fake_parts import refusals


def sized(least, most, steps=1, hold_s=0.0, **changes):
    return make_spec(
        **{
            "resources": {"rollout_devices": {"min": least, "max": most}},
            "mechanisms__scaling": {"type": "dead_band", "steps": steps, "hold_s": hold_s},
            "budget__train_steps": 20,
            **changes,
        }
    )


def engines(cluster, *memberships):
    leases = cluster.core.state.fleet.leases.values()
    held = [x for x in leases if x.use is DeviceUse.ENGINE and not x.releasing]
    return [x for x in held if x.membership in (memberships or ("member", "joining"))]


def decided(cluster):
    return [r for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.FLEET_SIZED]


def until_step(cluster, step):
    return cluster.run(lambda x: x.core.state.step >= step)


def test_it_starts_with_its_minimum_though_more_is_free_and_grows_when_trainers_wait():
    cluster = started(sized(1, 4, steps=3), seed=1)
    until_step(cluster, 2)
    assert len(engines(cluster)) == 1
    assert JOIN not in cluster.core.state.outstanding
    cluster.run(lambda x: len(engines(x, "member")) > 1)
    [first, *_] = decided(cluster)
    assert first.cause == "grow"
    assert "is to grow to" in first.reason
    assert "groups/s are generated" in first.reason
    assert any(note.text == first.reason for note in cluster.notes)
    shown = cluster.core.progress().fleet
    assert shown.wanted == cluster.core.state.fleet.scaling.target > 1
    assert shown.why
    assert shown.why in first.reason or len(decided(cluster)) > 1
    assert cluster.run().status is RunStatus.COMPLETED


def test_what_is_more_than_rates_ask_for_leaves_the_youngest_first_and_hands_over():
    cluster = started(sized(1, 4, steps=100, hold_s=86_400.0), seed=2)
    until_step(cluster, 1)
    cluster.core.state.fleet.scaling.target = 4
    cluster.run(lambda x: len(engines(x, "member")) == 4)
    youngest = sorted(x.lease_id for x in engines(cluster))[-2:]
    cluster.core.state.fleet.scaling.target = 2
    cluster.run(lambda x: len(engines(x)) == 2)
    assert not {x.lease_id for x in engines(cluster)} & set(youngest)
    assert any("leaves: 2 engines are enough" in note.text for note in cluster.notes)
    cluster.run(lambda x: not [one for one in youngest if one in x.core.state.fleet.leases])
    assert JOIN not in cluster.core.state.outstanding, "no device goes to and fro"
    assert cluster.core.state.fleet.replacements == 0
    assert cluster.run().status is RunStatus.COMPLETED


def test_a_fleet_below_what_it_wants_lets_nobody_go():
    cluster = started(sized(1, 6, steps=100, hold_s=86_400.0), seed=3)
    until_step(cluster, 1)
    cluster.core.state.fleet.scaling.target = 6
    cluster.run(lambda x: len(engines(x, "member")) == 3)
    assert not engines(cluster, "leaving")
    cluster.run(lambda x: len(engines(x, "member")) == 6)
    asked = [x for x in cluster.commands("request_devices") if x.extra]
    assert len(asked) == 5, "one request for each engine"


@pytest.mark.parametrize("seed", range(3))
def test_it_never_leaves_its_bounds_whatever_happens(seed):
    spec = sized(2, 5, mechanisms__lag_policy__bound=seed % 3)
    faults = Faults(surplus_recall=0.03, child_death=0.01, recall=0.02, lease_end=0.002)
    cluster = started(spec, seed=seed, faults=faults)
    while cluster.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
        cluster.happen()
        fleet = cluster.core.state.fleet
        assert len([*fleet.at_work(DeviceUse.ENGINE), *fleet.joining()]) <= 5, "those that stand by have no seat"
        target = cluster.core.state.fleet.scaling.target
        assert target == 0 or 2 <= target <= 5
    assert cluster.status is RunStatus.COMPLETED
    assert cluster.core.state.totals.samples_trained == len(cluster.trained)


def test_equal_logs_give_equal_sizes_restored_cores_too():
    spec = sized(1, 4)
    faults = Faults(surplus_recall=0.05, child_death=0.01)
    first = started(spec, seed=8, faults=faults).run()
    assert len(decided(first)) >= 1
    again = FakeCluster(spec)
    for event, now in first.log:
        again.core.handle(event, now)
        again.core = Orchestrator.restore(spec, again.core.snapshot())
    assert again.core.snapshot() == first.core.snapshot()


def test_a_fleet_that_takes_what_is_free_decides_nothing():
    cluster = started(make_spec(resources={"rollout_devices": {"min": 1, "max": 3}}), seed=4)
    cluster.run(lambda x: len(engines(x, "member")) == 3)
    assert cluster.run().status is RunStatus.COMPLETED
    assert not decided(cluster)
    assert cluster.core.state.fleet.scaling.seen == []
    assert cluster.core.progress().fleet.wanted == 3


def test_steps_beside_an_evaluation_are_not_measured():
    spec = sized(1, 4, steps=100, hold_s=86_400.0, evaluation__every_steps=5, mechanisms__lag_policy__bound=1)
    plain = until_step(started(sized(1, 4, steps=100, hold_s=86_400.0, evaluation__every_steps=1000), seed=5), 15)
    cluster = until_step(started(spec, seed=5), 15)
    measured = [len(x.core.state.fleet.scaling.recent) for x in (plain, cluster)]
    assert measured[0] >= 13
    assert 5 <= measured[1] <= measured[0] - 2


def test_a_change_of_the_fleet_begins_the_figures_anew():
    cluster = until_step(started(sized(1, 4, steps=100, hold_s=86_400.0), seed=6), 4)
    own = cluster.core.state.fleet.scaling
    assert len(own.recent) >= 2
    own.target = 2
    cluster.run(lambda x: len(engines(x, "member")) == 2)
    until_step(cluster, cluster.core.state.step + 2)
    assert len(own.recent) <= 1


def test_a_recalled_engine_comes_back_only_as_far_as_it_is_wanted():
    cluster = started(sized(1, 4, steps=100, hold_s=86_400.0), seed=7)
    until_step(cluster, 1)
    cluster.core.state.fleet.scaling.target = 3
    cluster.run(lambda x: len(engines(x, "member")) == 3)
    last = engines(cluster)[-1].lease_id
    cluster.tell(SurplusRecalled(lease_id=last, reason="run 2 waits"))
    cluster.core.state.fleet.scaling.target = 2
    cluster.run(lambda x: last not in x.core.state.fleet.leases)
    joins = [x for d in cluster.decisions for x in d.commands if isinstance(x.command, RequestDevices)]
    until_step(cluster, cluster.core.state.step + 2)
    assert len(engines(cluster)) == 2
    later = [x for d in cluster.decisions for x in d.commands if isinstance(x.command, RequestDevices)]
    assert len(later) <= len(joins) + 1


def test_a_pause_asks_for_nothing_and_keeps_what_was_decided():
    cluster = started(sized(1, 4, steps=100, hold_s=86_400.0), seed=9)
    until_step(cluster, 1)
    cluster.core.state.fleet.scaling.target = 3
    cluster.tell(RunVerb(verb=Verb.PAUSE, mode=PauseMode.DRAIN, operation="pause"))
    cluster.run(lambda x: x.status is RunStatus.PAUSED)
    assert JOIN not in cluster.core.state.outstanding
    cluster.tell(RunVerb(verb=Verb.RESUME, operation="resume"))
    cluster.run(lambda x: len(engines(x, "member")) == 3)
    assert cluster.run().status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        ({"mechanisms__scaling": "dead_band"}, "/mechanisms/scaling/type", "rollout_devices is fixed at 1"),
        (
            {"mechanisms__scaling": {"type": "dead_band", "shrink_below": 0.2}},
            "/mechanisms/scaling/shrink_below",
            "less than grow_above, 0.1: 0.05 is legal",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_by_field_and_rule(changes, pointer, words):
    [found] = refusals(**changes)
    assert found.pointer == pointer
    assert words in found.detail
