"""Pause by draining or freezing, devices given back and got again: what is kept and what is counted."""

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.events import DeviceUse, PauseMode, Verb, event_adapter
from flexmarl.contracts.status import GOALS, TRANSITIONS, RunReason, RunStatus, next_status
from tests.unit.orchestrator.asking import account, ask, freeze, in_mid_cohort, outcomes, until
from tests.unit.orchestrator.fake_cluster import FakeCluster, make_spec, running, started


# -- the table ------------------------------------------------------------------------------------------------------
def _paused():
    cluster = running(seed=4)
    freeze(cluster, hold_s=0)
    return until(cluster, RunStatus.PAUSED)


def _failed():
    cluster = running(seed=4)
    cluster.tell(e.CommandFailed(command_no=next(iter(cluster.open)), command_kind="x", code="x", message="x"))
    return cluster


def _after(cluster, verb):
    ask(cluster, verb)
    return cluster


IN_STATUS = {
    RunStatus.DRAFT: lambda: FakeCluster(make_spec(), seed=4),
    RunStatus.QUEUED: lambda: started(seed=4),
    RunStatus.STARTING: lambda: until(started(seed=4), RunStatus.STARTING),
    RunStatus.RUNNING: lambda: running(seed=4),
    RunStatus.PAUSING: lambda: _after(running(seed=4), Verb.PAUSE),
    RunStatus.PAUSED: _paused,
    RunStatus.RESUMING: lambda: _after(_paused(), Verb.RESUME),
    RunStatus.STOPPING: lambda: _after(running(seed=4), Verb.STOP),
    RunStatus.COMPLETED: lambda: running(seed=4).run(),
    RunStatus.FAILED: _failed,
    RunStatus.CANCELLED: lambda: _after(started(seed=4), Verb.STOP),
    RunStatus.KILLED: lambda: _after(running(seed=4), Verb.KILL),
}
"""The shortest way into each status."""


@pytest.mark.parametrize("status", RunStatus)
@pytest.mark.parametrize("verb", Verb)
def test_every_verb_in_every_status_does_what_the_table_says(status, verb):
    cluster = IN_STATUS[status]()
    assert cluster.status is status
    if verb in TRANSITIONS[status]:
        decision = ask(cluster, verb)
        # What follows of itself may follow at once: a frozen run is at rest, a stopped one may have nothing to do.
        statuses = [note.text.split()[2].rstrip(":") for note in decision.notes if note.text.startswith("run is ")]
        assert statuses[0] == next_status(status, verb)
        assert cluster.run(until=lambda x: x.status in GOALS[verb]).status in GOALS[verb]
        assert outcomes(cluster)[-1].succeeded
    else:
        own = cluster.core.state.lifecycle
        before = own.status, own.epoch, own.requested_verb
        decision = ask(cluster, verb)
        assert (own.status, own.epoch, own.requested_verb) == before
        assert not decision.commands
        assert "had no effect" in decision.notes[0].text
        assert [o.succeeded for o in decision.outcomes] == [False]


def test_verbs_of_older_logs_still_parse():
    event = event_adapter.validate_json('{"kind": "run_verb", "verb": "pause", "actor": "ada", "reason": ""}')
    assert (event.mode, event.hold_s, event.operation, event.cause) == (PauseMode.DRAIN, None, "", "")


# -- freeze ---------------------------------------------------------------------------------------------------------
def test_a_freeze_abandons_running_episodes_and_keeps_what_settled():
    cluster = in_mid_cohort()
    state = cluster.core.state
    playing, accumulated = sorted(state.cohort.open), [o.accumulated for o in state.cohort.policies.values()]
    cut = cluster.kinds().count("cut_micro_batch")
    decision = freeze(cluster)
    assert (
        f"{3 * len(playing) + len(state.evaluation.open if state.evaluation else ())} running" in decision.reason_text
    )
    until(cluster, RunStatus.PAUSED)
    assert all(o.kind == "host_lease" for o in state.outstanding.values())
    assert state.totals.train_episodes.cancelled == 3 * len(state.cohort.open)
    assert [o.accumulated for o in state.cohort.policies.values()] >= accumulated
    assert not {x.command.kind for x in cluster.open.values()} - {"host_lease"}
    plays = len(cluster.commands("play_groups"))
    left = sorted(state.cohort.open)
    decision = ask(cluster, Verb.RESUME)
    assert decision.status is RunStatus.RUNNING
    again = [g.draw for x in cluster.commands("play_groups")[plays:] if x.origin == "train" for g in x.groups]
    assert sorted(again) == left
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert cluster.kinds().count("cut_micro_batch") > cut
    assert "bind_policy" not in {n.command.kind for n in decision.commands}
    account(cluster)


def test_a_frozen_run_lets_the_trainer_finish_what_it_was_given():
    cluster = running(seed=2)
    cluster.run(until=lambda x: any(n.command.kind == "optimizer_step" for n in x.open.values()))
    assert freeze(cluster).status is RunStatus.PAUSING
    issued = len(cluster.kinds())
    until(cluster, RunStatus.PAUSED)
    begun = set(cluster.kinds()[issued:]) - {"keep_checkpoints"}  # a row about one that was under way
    assert not begun, "nothing new is begun"
    ask(cluster, Verb.RESUME)
    cluster.run()
    account(cluster)


def test_a_group_that_settled_before_the_freeze_reached_it_counts_after_all():
    cluster = running(make_spec(evaluation__every_steps=100), seed=1)
    cluster.run(until=lambda x: any(isinstance(event, e.GroupSettled) and event.origin == "train" for event in x.inbox))
    settled = next(event for event in cluster.inbox if isinstance(event, e.GroupSettled) and event.origin == "train")
    cluster.inbox.remove(settled)
    freeze(cluster)
    cancelled, left = cluster.core.state.totals.train_episodes.cancelled, len(cluster.core.state.cohort.open)
    assert cancelled == 3 * left
    cluster.tell(settled)
    assert cluster.core.state.totals.train_episodes.cancelled == cancelled - 3
    assert settled.draw not in cluster.core.state.cohort.open
    until(cluster, RunStatus.PAUSED)
    ask(cluster, Verb.RESUME)
    cluster.run()
    account(cluster)


def test_clocks_stand_still_while_a_run_rests():
    cluster = in_mid_cohort(budget__seconds=50.0, budget__train_steps=2)
    freeze(cluster)
    until(cluster, RunStatus.PAUSED)
    cluster.now += 1000.0
    ask(cluster, Verb.RESUME)
    cluster.run()
    assert cluster.core.state.lifecycle.reason is RunReason.BUDGET_STEPS, "the time limit does not count the rest"
    assert cluster.metrics["time/step", "", "mean", 1] < 50.0


# -- devices --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", PauseMode)
def test_a_paused_run_gives_its_devices_back_and_gets_others(mode):
    cluster = in_mid_cohort()
    ask(cluster, Verb.PAUSE, mode=mode, hold_s=5.0)
    until(cluster, RunStatus.PAUSED)
    assert cluster.kinds().count("release_lease") == 0
    assert cluster.deadline == pytest.approx(cluster.now + 5.0, abs=1.0)
    before = {name: policy.version for name, policy in cluster.core.state.policies.items()}
    cluster.run(until=lambda x: not x.core.state.fleet.leases)
    state = cluster.core.state
    assert (state.lifecycle.status, state.lifecycle.reason) == (RunStatus.PAUSED, RunReason.DEVICES_GIVEN_BACK)
    assert not any(policy.accumulator for policy in state.policies.values())
    decision = ask(cluster, Verb.RESUME)
    assert (decision.status, decision.reason) == (RunStatus.RESUMING, RunReason.WAITING_FOR_DEVICES)
    seen = len(cluster.commands("bind_policy"))
    until(cluster, RunStatus.RUNNING)
    assert {x.policy: x.version for x in cluster.commands("bind_policy")[seen:]} == before
    assert cluster.run().core.state.step == 4
    account(cluster)


def test_gradients_of_a_trainer_that_went_back_are_accumulated_again_once():
    cluster = in_mid_cohort()
    freeze(cluster, hold_s=0)
    until(cluster, RunStatus.PAUSED)
    cut = {(n, m.no) for n, own in cluster.core.state.cohort.policies.items() for m in own.micro_batches}
    seen = len(cluster.commands("accumulate"))
    ask(cluster, Verb.RESUME)
    cluster.run(until=lambda x: x.core.state.step == 1)
    again = [(x.policy, x.micro_batch) for x in cluster.commands("accumulate")[seen:]]
    assert cut <= set(again)
    assert len(again) == len(set(again))
    cluster.run()
    account(cluster)


def test_a_drained_run_is_exported_before_its_devices_go():
    cluster = running(make_spec(checkpoints__every_steps=100), seed=3)
    ask(cluster, Verb.PAUSE, hold_s=0)
    until(cluster, RunStatus.PAUSED)
    assert ("last", 1, {"speaker": 1, "listener": 1}) in cluster.checkpoints
    cluster.run(until=lambda x: not x.core.state.fleet.leases)
    decision = ask(cluster, Verb.STOP)
    assert decision.status is RunStatus.COMPLETED, "nothing is left to do, so no device is asked for"
    assert "request_devices" not in {n.command.kind for n in decision.commands}


def test_a_frozen_run_that_is_stopped_finishes_its_step_first():
    cluster = in_mid_cohort()
    freeze(cluster, hold_s=0)
    until(cluster, RunStatus.PAUSED)
    assert ask(cluster, Verb.STOP).status is RunStatus.STOPPING
    cluster.run()
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, 1)
    account(cluster)


def test_a_resume_that_waits_for_devices_can_be_paused_again_and_a_late_grant_goes_back():
    cluster = in_mid_cohort()
    freeze(cluster, hold_s=0)
    cluster.run(until=lambda x: x.status is RunStatus.PAUSED and not x.core.state.fleet.leases)
    ask(cluster, Verb.RESUME)
    number = next(n for n, x in cluster.open.items() if x.command.kind == "request_devices")
    cluster.execute(number)
    grant = cluster.inbox.pop()
    decision = ask(cluster, Verb.PAUSE, hold_s=60.0)
    assert decision.status is RunStatus.PAUSED
    assert [n.command.kind for n in cluster.tell(grant).commands] == ["release_lease"] * 2
    ask(cluster, Verb.RESUME)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    account(cluster)


def test_a_device_that_is_recalled_from_a_paused_run_goes_back_with_the_others():
    cluster = running()
    ask(cluster, Verb.PAUSE)
    until(cluster, RunStatus.PAUSED)
    lease = cluster.core.state.fleet.of_use(DeviceUse.ENGINE)[0]
    decision = cluster.tell(e.LeaseRecalled(lease_id=lease.lease_id, reason="box is drained"))
    assert [n.command.kind for n in decision.commands] == ["release_lease"] * 2
    assert "box is drained" in decision.reason_text
    ask(cluster, Verb.RESUME)
    assert cluster.run().status is RunStatus.COMPLETED
