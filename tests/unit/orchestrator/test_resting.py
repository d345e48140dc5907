"""Pause by draining or freezing, devices given back and got again, retry: what is kept, what is counted, who asked."""

import itertools

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.events import DeviceUse, PauseMode, Verb, event_adapter
from flexmarl.contracts.status import GOALS, TERMINAL, TRANSITIONS, RunReason, RunStatus, next_status
from flexmarl.orchestrator import Orchestrator
from flexmarl.orchestrator.types import AttemptBegan, AttemptEnded
from tests.unit.orchestrator.fake_cluster import FakeCluster, make_spec, running, started

ASKED = itertools.count(1)


def ask(cluster, verb, **options):
    """Ask for a verb under an operation and a request of its own."""
    number = next(ASKED)
    options = {"actor": "ada", "operation": f"op-{number}", "cause": f"req-{number}", **options}
    return cluster.tell(e.RunVerb(verb=verb, **options))


def freeze(cluster, hold_s=None):
    return ask(cluster, Verb.PAUSE, mode=PauseMode.FREEZE, hold_s=hold_s)


def until(cluster, status):
    return cluster.run(until=lambda x: x.status is status)


def deliver_all(cluster):
    """Take the facts that are told already, as the driver takes them before a later verb."""
    while cluster.inbox:
        cluster.deliver(0)


def attempts(cluster):
    return [change for d in cluster.decisions for change in d.attempts]


def outcomes(cluster):
    return [outcome for d in cluster.decisions for outcome in d.outcomes]


def account(cluster):
    state, episodes = cluster.core.state, cluster.core.state.train_episodes
    assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
    assert state.samples_trained == len(cluster.trained)
    for policy, history in cluster.versions.items():
        assert state.policies[policy].version == len(history) - 1


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
        before = cluster.core.state.status, cluster.core.state.epoch, cluster.core.state.wish
        decision = ask(cluster, verb)
        assert (cluster.core.state.status, cluster.core.state.epoch, cluster.core.state.wish) == before
        assert not decision.commands
        assert "had no effect" in decision.notes[0].text
        assert [o.succeeded for o in decision.outcomes] == [False]


def test_verbs_of_older_logs_still_parse():
    event = event_adapter.validate_json('{"kind": "run_verb", "verb": "pause", "actor": "ada", "reason": ""}')
    assert (event.mode, event.hold_s, event.operation, event.cause) == (PauseMode.DRAIN, None, "", "")


# -- freeze ---------------------------------------------------------------------------------------------------------
def in_mid_cohort(seed=1, **spec):
    """A run with settled and unsettled groups, and gradients already accumulated."""
    return running(make_spec(**spec), seed=seed).run(
        until=lambda x: (
            x.core.state.cohort is not None
            and 0 < len(x.core.state.cohort.open) < 5
            and any(own.accumulated for own in x.core.state.cohort.policies.values())
        )
    )


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
    assert state.train_episodes.cancelled == 3 * len(state.cohort.open)
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
    assert cluster.kinds()[issued:] == [], "nothing new is begun"
    ask(cluster, Verb.RESUME)
    cluster.run()
    account(cluster)


def test_a_group_that_settled_before_the_freeze_reached_it_counts_after_all():
    cluster = running(make_spec(evaluation__every_steps=100), seed=1)
    cluster.run(until=lambda x: any(isinstance(event, e.GroupSettled) and event.origin == "train" for event in x.inbox))
    settled = next(event for event in cluster.inbox if isinstance(event, e.GroupSettled) and event.origin == "train")
    cluster.inbox.remove(settled)
    freeze(cluster)
    cancelled, left = cluster.core.state.train_episodes.cancelled, len(cluster.core.state.cohort.open)
    assert cancelled == 3 * left
    cluster.tell(settled)
    assert cluster.core.state.train_episodes.cancelled == cancelled - 3
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
    assert cluster.core.state.reason is RunReason.BUDGET_STEPS, "the time limit does not count the rest"
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
    cluster.run(until=lambda x: not x.core.state.leases)
    state = cluster.core.state
    assert (state.status, state.reason) == (RunStatus.PAUSED, RunReason.DEVICES_GIVEN_BACK)
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
    cluster.run(until=lambda x: not x.core.state.leases)
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
    cluster.run(until=lambda x: x.status is RunStatus.PAUSED and not x.core.state.leases)
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
    lease = cluster.core.state.of_use(DeviceUse.ENGINE)[0]
    decision = cluster.tell(e.LeaseRecalled(lease_id=lease.lease_id, reason="box is drained"))
    assert [n.command.kind for n in decision.commands] == ["release_lease"] * 2
    assert "box is drained" in decision.reason_text
    ask(cluster, Verb.RESUME)
    assert cluster.run().status is RunStatus.COMPLETED


# -- attempts and retry ---------------------------------------------------------------------------------------------
def test_attempts_follow_the_devices():
    cluster = in_mid_cohort()
    ask(cluster, Verb.PAUSE)
    until(cluster, RunStatus.PAUSED)
    ask(cluster, Verb.RESUME)
    assert len(attempts(cluster)) == 1, "a pause that keeps its devices is one stretch with what follows"
    freeze(cluster, hold_s=0)
    until(cluster, RunStatus.PAUSED)
    ask(cluster, Verb.RESUME, actor="bob")
    until(cluster, RunStatus.RUNNING)
    cluster.run(until=lambda x: x.core.state.step >= 2)
    ask(cluster, Verb.KILL, actor="eve", reason="enough")
    first, end, second, killed = attempts(cluster)
    assert first == AttemptBegan(1, 1, Verb.START, "ada", 0)
    assert (end.no, end.status, end.reason, end.actor) == (1, RunStatus.PAUSED, RunReason.DEVICES_GIVEN_BACK, "ada")
    assert second == AttemptBegan(2, 1, Verb.RESUME, "bob", end.last_step)
    assert isinstance(killed, AttemptEnded)
    assert (killed.no, killed.status, killed.reason_text, killed.actor) == (2, RunStatus.KILLED, "enough", "eve")
    assert killed.last_step == cluster.core.state.step
    assert killed.versions == {n: p.version for n, p in cluster.core.state.policies.items()}


@pytest.mark.parametrize("seed", range(6))
def test_a_retry_goes_on_from_the_committed_versions(seed):
    cluster = running(seed=seed)
    cluster.run(until=lambda x: x.core.state.step == 2 and x.core.state.cohort is not None)
    for _ in range(seed * 9):
        cluster.happen()
    ask(cluster, Verb.KILL)
    deliver_all(cluster)
    before = {name: policy.version for name, policy in cluster.core.state.policies.items()}
    assert before == {name: len(history) - 1 for name, history in cluster.versions.items()}
    epoch, draws = cluster.core.state.epoch, cluster.core.state.next_draw
    decision = ask(cluster, Verb.RETRY)
    assert (decision.status, decision.epoch) == (RunStatus.QUEUED, epoch + 1)
    seen = len(cluster.commands("bind_policy"))
    until(cluster, RunStatus.RUNNING)
    assert {x.policy: x.version for x in cluster.commands("bind_policy")[seen:]} == before
    assert cluster.core.state.cohort.no == cluster.core.state.step, "the dropped step is played anew"
    assert cluster.core.state.cohort.first_draw >= draws, "with other draws"
    cluster.run()
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, 4)
    account(cluster)


def test_a_step_that_was_committed_while_its_run_was_killed_is_where_the_retry_starts():
    cluster = running(seed=2)
    cluster.run(until=lambda x: any(isinstance(event, e.StepCommitted) for event in x.inbox))
    committed = next(event for event in cluster.inbox if isinstance(event, e.StepCommitted))
    ask(cluster, Verb.KILL)
    trained = cluster.core.state.samples_trained
    deliver_all(cluster)
    assert cluster.core.state.policies[committed.policy].version == committed.version
    assert cluster.core.state.samples_trained > trained
    ask(cluster, Verb.RETRY)
    cluster.run()
    account(cluster)


def test_a_run_that_failed_before_version_0_starts_over():
    cluster = started()
    until(cluster, RunStatus.STARTING)
    cluster.run(until=lambda x: any(n.command.kind == "bind_policy" for n in x.open.values()))
    number = next(n for n, x in cluster.open.items() if x.command.kind == "bind_policy")
    cluster.fail(number, cluster.open[number].command, "boom", retryable=False)
    deliver_all(cluster)
    assert cluster.status is RunStatus.FAILED
    ask(cluster, Verb.RETRY)
    assert cluster.run().core.state.step == 4
    account(cluster)


def test_a_run_that_was_killed_after_its_last_step_is_evaluated_and_not_trained_again():
    cluster = running()
    cluster.run(until=lambda x: x.status is RunStatus.STOPPING)
    ask(cluster, Verb.KILL)
    deliver_all(cluster)
    ask(cluster, Verb.RETRY)
    cluster.run()
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, 4)
    assert cluster.core.state.history.eval_step == 4


def test_checkpoints_that_were_wanted_when_a_run_was_killed_are_written_by_the_next_attempt():
    cluster = running(make_spec(checkpoints__every_steps=1))
    cluster.run(until=lambda x: any(n.command.kind == "write_checkpoint" for n in x.open.values()))
    wanted = set(cluster.core.state.checkpoints)
    ask(cluster, Verb.KILL)
    deliver_all(cluster)
    ask(cluster, Verb.RETRY)
    cluster.run()
    assert wanted <= {label for label, _, _ in cluster.checkpoints}


def test_a_state_from_before_attempts_gets_its_first_one():
    cluster = running()
    raw = cluster.core.snapshot()
    for member in (b'"attempt":1,', b'"attempt_open":true,'):
        assert member in raw
        raw = raw.replace(member, b"")
    core = Orchestrator.restore(cluster.spec, raw)
    assert (core.state.attempt, core.state.attempt_open) == (1, True)
    decision = core.handle(e.RunVerb(verb=Verb.KILL), cluster.now)
    assert [change.no for change in decision.attempts] == [1]


# -- who asked, and what became of it -------------------------------------------------------------------------------
def test_each_line_of_the_life_cycle_says_who_asked_and_by_which_request():
    cluster = FakeCluster(make_spec(), seed=1)
    ask(cluster, Verb.START, actor="ada", cause="req-start")
    until(cluster, RunStatus.RUNNING)
    ask(cluster, Verb.PAUSE, actor="bob", cause="req-pause", hold_s=0)
    until(cluster, RunStatus.PAUSED)
    ask(cluster, Verb.KILL, actor="eve", cause="req-kill")
    said = {note.text.split(":")[0]: (note.actor, note.target, note.cause) for note in cluster.notes if note.cause}
    for status in ("queued", "starting", "running"):
        assert said[f"run is {status}"] == ("ada", "run", "req-start")
    assert said["run is pausing"] == said["run is paused"] == ("bob", "run", "req-pause")
    assert said["run is killed"] == ("eve", "run", "req-kill")


def test_what_a_run_does_of_itself_is_nobodys_wish():
    cluster = started(seed=1).run()
    last = [note for note in cluster.notes if note.text.startswith("run is ")][-2:]
    assert [(note.actor, note.cause) for note in last] == [("", ""), ("", "")]


def test_a_verb_is_overtaken_by_the_next_one_and_missed_by_a_failure():
    cluster = running(seed=1)
    ask(cluster, Verb.PAUSE, operation="pause")
    ask(cluster, Verb.STOP, operation="stop")
    cluster.core.fail("ValueError: x", cluster.now)
    found = {o.operation: (o.succeeded, o.text) for o in outcomes(cluster)}
    assert found["pause"] == (False, "overtaken by stop")
    assert "stop" not in found
    decision = Orchestrator.restore(cluster.spec, running(seed=1).core.snapshot())
    decision.handle(e.RunVerb(verb=Verb.STOP, operation="stop"), 2000.0)
    missed = decision.fail("ValueError: x", 2000.0).outcomes
    assert [(o.operation, o.succeeded, o.text) for o in missed] == [("stop", False, "ValueError: x")]


def test_every_operation_has_exactly_one_outcome():
    for seed in range(8):
        cluster = running(seed=seed)
        for verb in (Verb.PAUSE, Verb.RESUME, Verb.PAUSE, Verb.STOP, Verb.RESUME, Verb.KILL):
            for _ in range(seed * 7):
                if cluster.status not in (*TERMINAL, RunStatus.PAUSED):
                    cluster.happen()
            ask(cluster, verb, mode=PauseMode.FREEZE if seed % 2 else PauseMode.DRAIN)
        cluster.run()
        asked = [event.operation for event, _ in cluster.log if isinstance(event, e.RunVerb) and event.operation]
        assert sorted(o.operation for o in outcomes(cluster)) == sorted(asked)
