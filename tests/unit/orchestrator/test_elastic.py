"""Fleets that grow and shrink: engines join up to the maximum, leave above the minimum, and nothing is lost by it."""

import pytest

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.events import DeviceUse, LeaseEnded, LeaseRecalled, PauseMode, RunVerb, SurplusRecalled, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.pool.device_requests import JOIN
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec, started


def elastic(least, most, **changes):
    return make_spec(**{"resources": {"rollout_devices": {"min": least, "max": most}}, **changes})


def fleet(cluster, *memberships):
    """List the leases of engines in these states, whose devices are not on their way back."""
    leases = cluster.core.state.fleet.leases.values()
    wanted = memberships or ("member", "joining", "leaving")
    return [x for x in leases if x.use is DeviceUse.ENGINE and not x.releasing and x.membership in wanted]


def plays(cluster):
    return any(isinstance(x.command, c.PlayGroups) for x in cluster.open.values())


def grown(least=1, most=3, seed=1, **changes):
    """A run whose fleet has grown to its maximum and plays."""
    cluster = started(elastic(least, most, **changes), seed=seed)
    return cluster.run(lambda x: len(fleet(x, "member")) == most and plays(x) and x.status is RunStatus.RUNNING)


def of_kind(cluster, kind):
    return [x.command for d in cluster.decisions for x in d.commands if x.command.kind == kind]


def account(cluster):
    state = cluster.core.state
    assert state.totals.samples_trained == len(cluster.trained)
    for policy, history in cluster.versions.items():
        assert state.policies[policy].version == len(history) - 1


def test_a_fixed_number_asks_for_what_it_asked_for_before():
    cluster = started(make_spec(resources={"rollout_devices": 2}), seed=1).run()
    asked = [x.model_dump() for x in of_kind(cluster, "request_devices")]
    assert len(asked) == 1
    assert asked[0]["engines"] == 2
    assert "extra" not in asked[0], "rows of older runs have none"


def test_a_run_starts_with_its_minimum_and_grows_to_its_maximum():
    cluster = grown(least=2, most=4)
    first, *joins = of_kind(cluster, "request_devices")
    assert (first.engines, first.trainers, first.extra) == (2, 1, False)
    assert [(x.engines, x.trainers, x.extra) for x in joins] == [(1, 0, True)] * 2
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    account(cluster)


def test_a_run_goes_on_with_its_minimum_while_nothing_is_free():
    cluster = started(elastic(1, 3), seed=2)
    cluster.run(lambda x: bool(fleet(x)))
    cluster.grants = False
    cluster.run(lambda x: x.core.state.step == 2)
    assert len(fleet(cluster)) == 1
    assert JOIN in cluster.core.state.outstanding
    assert not cluster.core.state.lifecycle.reason_text, "it lacks nothing"
    cluster.grants = True
    cluster.run(lambda x: len(fleet(x, "member")) == 3)
    assert cluster.run().status is RunStatus.COMPLETED


def test_an_engine_that_joins_is_not_waited_for_until_it_holds_the_weights():
    cluster = started(elastic(1, 2), seed=3)
    cluster.run(lambda x: len(fleet(x, "joining")) == 1 and not fleet(x, "joining")[0].child.incarnation)
    own = fleet(cluster, "joining")[0].lease_id
    hosting = next(n for n, x in cluster.open.items() if x.command.kind == "host_lease" and x.command.lease_id == own)
    cluster.held.add(hosting)  # its device worker is slow
    cluster.run(lambda x: x.core.state.step == 2)
    assert fleet(cluster, "joining")[0].lease_id == own
    cluster.held.clear()
    possible = cluster.possible
    cluster.possible = lambda x: (x.kind != "load_weights" or x.lease_id != own) and possible(x)
    cluster.run(lambda x: x.core.state.step == 3)
    assert fleet(cluster, "joining")[0].child.incarnation, "it answers, and its weights are on their way"
    cluster.possible = possible
    cluster.run(lambda x: len(fleet(x, "member")) == 2)
    assert cluster.run().status is RunStatus.COMPLETED


def test_what_somebody_waits_for_leaves_at_once_and_hands_over():
    cluster = grown()
    last = fleet(cluster)[-1].lease_id
    cluster.grants = False
    cluster.tell(SurplusRecalled(lease_id=last, reason="run 2 waits for 1 device in default"))
    unloads = [x for x in of_kind(cluster, "unload_policy") if x.lease_id == last]
    assert {x.policy for x in unloads} == {"speaker", "listener"}
    assert all(x.hand_over for x in unloads)
    assert [x.lease_id for x in fleet(cluster, "leaving")] == [last]
    cluster.run(lambda x: last not in x.core.state.fleet.leases)
    assert len(fleet(cluster, "member")) == 2
    assert cluster.core.state.fleet.replacements == 0
    assert any("leaves: run 2 waits" in note.text for note in cluster.notes)
    assert cluster.run().status is RunStatus.COMPLETED
    account(cluster)


@pytest.mark.parametrize("least", [1, 2, 3])
def test_a_run_never_falls_below_its_minimum_by_what_it_gives_back(least):
    cluster = grown(least=least, most=3, seed=4)
    cluster.grants = False
    for lease in list(fleet(cluster)):
        cluster.tell(SurplusRecalled(lease_id=lease.lease_id, reason="run 2 waits"))
    assert len(fleet(cluster, "member", "joining")) == least
    assert len(fleet(cluster, "leaving")) <= 3 - least
    assert cluster.run().status is RunStatus.COMPLETED
    account(cluster)


def test_a_drained_engine_above_the_minimum_leaves_without_a_replacement():
    cluster = grown()
    last = fleet(cluster)[-1].lease_id
    cluster.grants = False
    cluster.tell(LeaseRecalled(lease_id=last, reason="box is being drained"))
    assert [x.lease_id for x in fleet(cluster, "leaving")] == [last]
    assert not cluster.core.state.outstanding.any_of("replace")
    cluster.run(lambda x: last not in x.core.state.fleet.leases)
    assert JOIN in cluster.core.state.outstanding, "another device may take its place"


def test_a_drained_engine_of_the_minimum_waits_for_another_one():
    cluster = started(elastic(2, 3), seed=5)
    cluster.run(lambda x: len(fleet(x, "member")) == 2)
    cluster.grants = False
    cluster.run(plays)
    first = fleet(cluster)[0].lease_id
    cluster.tell(LeaseRecalled(lease_id=first, reason="box is being drained"))
    assert not fleet(cluster, "leaving")
    assert first in cluster.core.state.fleet.leases
    cluster.grants = True
    cluster.run(lambda x: first not in x.core.state.fleet.leases)
    assert cluster.run().status is RunStatus.COMPLETED
    account(cluster)


def test_an_engine_above_the_minimum_that_is_lost_fails_nothing_and_is_not_waited_for():
    cluster = grown()
    cluster.grants = False
    for lease in fleet(cluster)[1:]:
        cluster.ended.add(lease.lease_id)
        cluster.children.pop(lease.lease_id, None)
        cluster.tell(LeaseEnded(lease_id=lease.lease_id, reason="its host is gone"))
    state = cluster.core.state
    assert state.fleet.replacements == 0
    assert "devices" not in state.outstanding, "the run has all that it needs"
    assert cluster.run().status is RunStatus.COMPLETED
    account(cluster)


def test_a_lost_child_above_the_minimum_joins_again():
    cluster = grown()
    own = fleet(cluster)[0]
    cluster.children.pop(own.lease_id)
    cluster.tell(e.ChildLost(lease_id=own.lease_id, incarnation=own.child.incarnation, reason="killed"))
    assert own.membership == "joining"
    cluster.run(lambda x: x.core.state.step >= 2)
    cluster.start_child(own.lease_id)
    cluster.run(lambda x: own.membership == "member")
    assert cluster.run().status is RunStatus.COMPLETED


def test_engines_that_cannot_start_are_asked_for_less_and_less_often():
    cluster = started(elastic(1, 2), seed=6)
    cluster.run(lambda x: len(fleet(x, "member")) == 1 and bool(fleet(x, "joining")))
    waits = []
    for _ in range(3):
        own = fleet(cluster, "joining")[0].lease_id
        cluster.ended.add(own)
        cluster.children.pop(own, None)
        cluster.tell(LeaseEnded(lease_id=own, reason="it cannot start", cannot_start=True))
        waits.append(round(cluster.core.state.failures[JOIN].until - cluster.now))
        cluster.now = cluster.core.state.failures[JOIN].until
        cluster.run(lambda x: bool(fleet(x, "joining")))
    assert waits == [10, 30, 120]
    assert cluster.status is RunStatus.RUNNING


@pytest.mark.parametrize("mode", list(PauseMode))
def test_a_pause_keeps_what_is_held_and_asks_for_no_more(mode):
    cluster = grown(seed=7)
    cluster.tell(SurplusRecalled(lease_id=fleet(cluster)[-1].lease_id, reason="run 2 waits"))
    cluster.tell(RunVerb(verb=Verb.PAUSE, mode=mode, operation="pause"))
    cluster.run(lambda x: x.status is RunStatus.PAUSED and not fleet(x, "leaving"))
    assert JOIN not in cluster.core.state.outstanding
    held = len(fleet(cluster))
    cluster.tell(SurplusRecalled(lease_id=fleet(cluster)[-1].lease_id, reason="run 3 waits"))
    assert len(fleet(cluster)) == held - 1, "nothing plays: its device is given back at once"
    cluster.tell(RunVerb(verb=Verb.RESUME, operation="resume"))
    assert cluster.run().status is RunStatus.COMPLETED
    account(cluster)


def test_equal_logs_give_equal_commands_while_the_fleet_changes():
    spec = elastic(1, 3, mechanisms__lag_policy__bound=1)
    faults = Faults(surplus_recall=0.05, child_death=0.01, recall=0.02, lease_end=0.003)
    first = started(spec, seed=8, faults=faults).run()
    again = FakeCluster(spec)
    for event, now in first.log:
        again.core.handle(event, now)
    assert again.core.snapshot() == first.core.snapshot()
    assert first.recalls > 0


def test_a_run_that_goes_on_asks_to_grow_with_the_fact_that_lets_it():
    cluster = grown(seed=9)
    cluster.tell(RunVerb(verb=Verb.PAUSE, mode=PauseMode.DRAIN, hold_s=0.0, operation="pause"))
    cluster.run(lambda x: x.status is RunStatus.PAUSED and not x.core.state.fleet.leases)
    cluster.tell(RunVerb(verb=Verb.RESUME, operation="resume"))
    cluster.run(lambda x: x.status is RunStatus.RUNNING)
    assert JOIN in cluster.core.state.outstanding
    assert cluster.run().status is RunStatus.COMPLETED


def test_a_recalled_engine_leaves_when_another_has_joined_and_loads_nothing_more():
    """The cluster checks after every fact that no load of an engine that leaves is on its way."""
    for seed in range(20, 26):
        cluster = grown(least=1, most=2, seed=seed)
        cluster.grants = False
        first, last = fleet(cluster)
        cluster.children.pop(last.lease_id)
        cluster.tell(e.ChildLost(lease_id=last.lease_id, incarnation=last.child.incarnation, reason="killed"))
        cluster.tell(LeaseRecalled(lease_id=first.lease_id, reason="box is being drained"))
        assert first.membership == "member", "nobody else is there yet"
        cluster.start_child(last.lease_id)
        unloads = {n for n, x in cluster.open.items() if x.command.kind == "unload_policy"}
        cluster.run(lambda x, own=first: own.membership == "leaving")
        unloads = {n for n, x in cluster.open.items() if x.command.kind == "unload_policy"} - unloads
        cluster.held |= unloads  # it hands over slowly, and versions are published meanwhile
        cluster.run(lambda x: x.core.state.step >= 3)
        cluster.held.clear()
        assert cluster.run().status is RunStatus.COMPLETED
        account(cluster)
