"""Attempts, retries, and the names in which the lines of a run's life are said."""

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.attempts import AttemptBegan, AttemptEnded
from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.asking import account, ask, attempts, deliver_all, freeze, in_mid_cohort, outcomes, until
from tests.unit.orchestrator.fake_cluster import FakeCluster, make_spec, running, started


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
    epoch, draws = cluster.core.state.lifecycle.epoch, cluster.core.state.numbers.draw
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
    trained = cluster.core.state.totals.samples_trained
    deliver_all(cluster)
    assert cluster.core.state.policies[committed.policy].version == committed.version
    assert cluster.core.state.totals.samples_trained > trained
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
    cluster.core.handle(e.RunGivenUp(cause="orchestrator_error", text="ValueError: x"), cluster.now)
    found = {o.operation: (o.succeeded, o.text) for o in outcomes(cluster)}
    assert found["pause"] == (False, "superseded by stop")
    assert "stop" not in found
    decision = Orchestrator.restore(cluster.spec, running(seed=1).core.snapshot())
    decision.handle(e.RunVerb(verb=Verb.STOP, operation="stop"), 2000.0)
    missed = decision.handle(e.RunGivenUp(cause="orchestrator_error", text="ValueError: x"), 2000.0).outcomes
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
