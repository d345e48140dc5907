"""Verbs, moves and ends; losses and failures of commands."""

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.events import DeviceUse, Verb
from flexmarl.contracts.status import INTERNAL_MOVES, TERMINAL, TRANSITIONS, RunReason, RunStatus
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.fake_cluster import FakeCluster, make_spec, running, started


def fail_next(cluster, kind, code="boom", retryable=True):
    """Let the next open command of a kind fail once it exists."""
    cluster.run(until=lambda x: any(n.command.kind == kind for n in x.open.values()))
    number = next(n for n, x in cluster.open.items() if x.command.kind == kind)
    cluster.fail(number, cluster.open[number].command, code, retryable)
    return cluster.tell(cluster.inbox.pop())


def test_tables_cover_every_status_and_nothing_but_a_retry_leaves_an_end():
    assert set(TRANSITIONS) == set(INTERNAL_MOVES) == set(RunStatus)
    assert all(set(TRANSITIONS[s]) <= {Verb.RETRY} and not INTERNAL_MOVES[s] for s in TERMINAL)
    assert not TRANSITIONS[RunStatus.COMPLETED], "what is complete stays so"


def test_start_asks_for_a_gang_and_hosts_what_it_gets():
    cluster = FakeCluster(make_spec())
    decision = cluster.verb(Verb.START)
    assert decision.status is RunStatus.QUEUED
    assert [n.command.kind for n in decision.commands] == ["request_devices"]
    cluster.run(until=lambda x: x.status is RunStatus.STARTING)
    assert sorted(x.use for x in cluster.commands("host_lease")) == ["engine", "trainer"]
    cluster.run(until=lambda x: x.status is RunStatus.RUNNING)
    assert cluster.commands("bind_policy")[0].version is None


@pytest.mark.parametrize("verb", [Verb.PAUSE, Verb.RESUME, Verb.START])
def test_an_illegal_verb_is_named_with_the_legal_ones_and_changes_nothing(verb):
    cluster = started()
    decision = cluster.verb(verb)
    assert (decision.status, list(decision.commands)) == (RunStatus.QUEUED, [])
    assert "allows stop, kill" in decision.notes[0].text


def test_pause_finishes_the_cohort_and_keeps_devices():
    cluster = running()
    assert cluster.verb(Verb.PAUSE).status is RunStatus.PAUSING
    cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
    assert (cluster.core.state.step, cluster.core.state.numbers.cohort) == (1, 1)
    assert len(cluster.core.state.fleet.leases) == 2
    assert "release_lease" not in cluster.kinds()
    while cluster.inbox:
        cluster.deliver(0)
    assert cluster.core.state.cohort is None
    decision = cluster.verb(Verb.RESUME)
    assert decision.status is RunStatus.RUNNING
    assert {n.command.kind for n in decision.commands} == {"play_groups"}
    assert cluster.run().core.state.step == 4


def test_resume_while_pausing_goes_on_without_a_gap():
    cluster = running()
    cluster.verb(Verb.PAUSE)
    assert cluster.verb(Verb.RESUME).status is RunStatus.RUNNING
    assert cluster.run().status is RunStatus.COMPLETED


def test_stop_finishes_the_cohort_writes_the_last_checkpoint_and_releases():
    cluster = running()
    cluster.verb(Verb.STOP)
    cluster.run()
    state = cluster.core.state
    assert (state.lifecycle.status, state.lifecycle.reason, state.step) == (
        RunStatus.COMPLETED,
        RunReason.USER_REQUEST,
        1,
    )
    assert ("last", 1, {"speaker": 1, "listener": 1}) in cluster.checkpoints
    assert cluster.kinds().count("release_lease") == 2


@pytest.mark.parametrize("until", [RunStatus.QUEUED, RunStatus.STARTING])
def test_stop_before_the_first_step_cancels(until):
    cluster = started().run(until=lambda x: x.status is until)
    cluster.verb(Verb.STOP)
    cluster.run()
    assert cluster.status is RunStatus.CANCELLED
    assert all(lease.releasing for lease in cluster.core.state.fleet.leases.values())


def test_stop_while_paused_ends_without_another_step():
    cluster = running()
    cluster.verb(Verb.PAUSE)
    cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
    cluster.verb(Verb.STOP)
    assert cluster.run().core.state.step == 1
    assert cluster.status is RunStatus.COMPLETED


def test_kill_is_terminal_at_once():
    cluster = running()
    playing = len(cluster.core.state.cohort.open) * 3
    outstanding = {o.no for o in cluster.core.state.outstanding.values() if o.kind != "host_lease"}
    decision = cluster.verb(Verb.KILL)
    assert (decision.status, decision.epoch) == (RunStatus.KILLED, 2)
    assert set(decision.void) == outstanding
    assert [n.command.kind for n in decision.commands] == ["release_lease"] * 2
    assert cluster.core.state.totals.train_episodes.cancelled == playing


def test_devices_granted_after_the_end_are_given_back():
    cluster = started()
    cluster.execute(next(iter(cluster.open)))
    grant = cluster.inbox.pop()
    cluster.verb(Verb.KILL)
    assert [n.command.kind for n in cluster.tell(grant).commands] == ["release_lease"] * 2


def test_time_budget_asks_for_a_timer_and_drains():
    cluster = running(make_spec(budget__seconds=0.001, budget__train_steps=1000))
    assert cluster.deadline is not None
    cluster.run()
    assert cluster.core.state.lifecycle.reason is RunReason.BUDGET_TIME
    assert cluster.core.state.step == 1
    assert cluster.core.state.history.eval_step == 1


def test_target_reached_ends_the_run():
    cluster = running(make_spec(budget__target={"metric": "eval/team_score", "value": 0.0}))
    cluster.run()
    assert cluster.core.state.lifecycle.reason is RunReason.TARGET_REACHED
    assert cluster.core.state.step <= 1 + 2


def test_a_lost_trainer_is_bound_again_and_gets_the_same_micro_batches():
    cluster = running(seed=2)
    cluster.run(until=lambda x: any(n.command.kind == "optimizer_step" for n in x.open.values()))
    trainer = cluster.core.state.fleet.trainers()[0]
    policy = next(n.command for n in cluster.open.values() if n.command.kind == "optimizer_step").policy
    lost = e.ChildLost(lease_id=trainer.lease_id, incarnation=trainer.child.incarnation, reason="killed")
    decision = cluster.tell(lost)
    assert decision.reason is RunReason.RECOVERING_TRAINER
    assert not any(n.command.kind in ("optimizer_step", "accumulate") for n in cluster.open.values())
    seen = len(cluster.commands("accumulate"))
    cluster.inbox = [x for x in cluster.inbox if not isinstance(x, e.StepCommitted | e.MicroBatchAccumulated)]
    cluster.start_child(trainer.lease_id)
    cluster.run(until=lambda x: x.core.state.step == 1)
    again = [x for x in cluster.commands("accumulate")[seen:] if x.policy == policy]
    cut = cluster.commands("cut_micro_batch")
    numbers = [x.ref.no for x in cut if x.ref.policy == policy and x.cohort == 0]
    assert [x.micro_batch for x in again] == numbers
    assert len({x.accumulator for x in again}) == 1
    assert [x.version for x in cluster.commands("bind_policy")] == [None, None, 0, 0]


def test_a_step_that_committed_before_its_trainer_died_counts():
    cluster = running(seed=2)
    cluster.run(until=lambda x: any(isinstance(event, e.StepCommitted) for event in x.inbox))
    committed = next(event for event in cluster.inbox if isinstance(event, e.StepCommitted))
    cluster.inbox.remove(committed)
    trainer = cluster.core.state.fleet.trainers()[0]
    cluster.tell(e.ChildLost(lease_id=trainer.lease_id, incarnation=trainer.child.incarnation))
    cluster.start_child(trainer.lease_id)
    cluster.run(until=lambda x: x.core.state.policies[committed.policy].accumulator != "")
    before = len(cluster.commands("accumulate"))
    cluster.tell(committed)
    assert cluster.core.state.policies[committed.policy].version == committed.version
    cluster.run(until=lambda x: x.core.state.policies[committed.policy].accumulator != "")
    assert cluster.commands("bind_policy")[-1].version == committed.version
    mine = [x for x in cluster.commands("accumulate")[before:] if x.policy == committed.policy]
    assert not mine
    assert cluster.run().status is RunStatus.COMPLETED


def test_a_lost_engine_gets_the_pinned_version_back():
    cluster = running()
    cluster.run(until=lambda x: x.core.state.numbers.cohort == 2)
    engine = cluster.core.state.fleet.of_use(DeviceUse.ENGINE)[0]
    old = engine.child.incarnation
    assert cluster.tell(e.ChildLost(lease_id=engine.lease_id, incarnation=old)).reason is RunReason.RECOVERING_ENGINE
    decision = cluster.tell(e.ChildReady(lease_id=engine.lease_id, use=DeviceUse.ENGINE, incarnation="new"))
    assert [(n.command.kind, n.command.version) for n in decision.commands] == [("load_weights", 1)] * 2
    assert decision.reason is RunReason.NONE
    late = e.WeightsServed(
        lease_id=engine.lease_id, incarnation=old, policy="speaker", version=1, digest="0" * 64, command_no=1
    )
    cluster.tell(late)
    assert engine.lease_id in cluster.core.state.fleet.leases
    assert cluster.core.state.fleet.leases[engine.lease_id].weights.held == {}


MEMORY = "out_of_memory: the child ended with code 1, 3 times in 3600 s; free memory on that host"


@pytest.mark.parametrize(
    ("why", "reason"), [("5 losses in 60 s", RunReason.CHILDREN_LOST), (MEMORY, RunReason.OUT_OF_MEMORY)]
)
def test_a_lease_that_ended_is_replaced_a_bounded_number_of_times(why, reason):
    cluster = running()
    for _ in range(5):
        lease = cluster.core.state.fleet.of_use(DeviceUse.ENGINE)[0]
        decision = cluster.tell(e.LeaseEnded(lease_id=lease.lease_id, reason=why))
        if decision.status is RunStatus.FAILED:
            break
        request = next(n.command for n in decision.commands if n.command.kind == "request_devices")
        assert (request.engines, request.trainers) == (1, 0)
        number = next(n for n, x in cluster.open.items() if x.command.kind == "request_devices")
        cluster.execute(number)
        cluster.tell(cluster.inbox.pop())
    assert decision.reason is reason
    assert why in decision.reason_text


CANNOT = "the child cannot start: FLEXMARL_VLLM_PYTHON is not set on this node; set it, or choose torch"


@pytest.mark.parametrize("use", DeviceUse)
def test_a_child_that_cannot_start_ends_a_starting_run_at_once_with_the_next_step(use):
    cluster = started()
    cluster.run(until=lambda x: x.status is RunStatus.STARTING)
    lease = cluster.core.state.fleet.of_use(use)[0]
    decision = cluster.tell(e.LeaseEnded(lease_id=lease.lease_id, reason=CANNOT, cannot_start=True))
    assert (decision.status, decision.reason) == (RunStatus.FAILED, RunReason.CANNOT_START)
    assert decision.reason_text == f"the {use} on {lease.device_id} cannot start: {CANNOT}; then retry the run"


def test_one_that_cannot_start_in_place_of_a_lost_one_is_replaced_elsewhere():
    cluster = running()
    lease = cluster.core.state.fleet.of_use(DeviceUse.ENGINE)[0]
    decision = cluster.tell(e.LeaseEnded(lease_id=lease.lease_id, reason=CANNOT, cannot_start=True))
    assert decision.status is RunStatus.RUNNING
    assert [n.command.kind for n in decision.commands] == ["request_devices"]


def test_a_start_that_failed_is_said_on_the_run_the_first_time():
    cluster = started()
    cluster.run(until=lambda x: x.status is RunStatus.STARTING)
    lease = cluster.core.state.fleet.of_use(DeviceUse.ENGINE)[0]
    decision = cluster.tell(e.ChildLost(lease_id=lease.lease_id, incarnation="e1", reason="no module x", ready=False))
    assert decision.status is RunStatus.STARTING
    text = f"engine on {lease.device_id} did not start: no module x; it is restarted"
    assert decision.reason_text == text
    assert [note.text for note in decision.notes] == [text]
    assert cluster.run(until=lambda x: x.status is RunStatus.RUNNING).core.state.lifecycle.reason_text != text


@pytest.mark.parametrize("kind", ["accumulate", "bind_policy", "load_weights"])
def test_memory_that_does_not_suffice_again_and_again_ends_the_run_by_that_name(kind):
    cluster = started(make_spec(agents={r: {"policy": "both"} for r in ("speaker", "listener")}))
    statuses = []
    while RunStatus.FAILED not in statuses:
        decision = fail_next(cluster, kind, "out_of_memory")
        statuses.append(decision.status)
    assert len(statuses) == 5
    assert decision.reason is RunReason.OUT_OF_MEMORY
    assert "(out_of_memory); free memory on that host, use fewer devices there" in decision.reason_text


def test_a_failed_command_is_repeated_after_a_back_off():
    cluster = running()
    decision = fail_next(cluster, "play_groups")
    assert not decision.commands
    assert decision.deadline == pytest.approx(cluster.now + 0.5)
    key, failure = next(iter(cluster.core.state.failures.items()))
    open_draws = [d for d, k in cluster.core.state.cohort.open.items() if k == key]
    open_draws += [d for d, k in cluster.core.state.evaluation.open.items() if k == key]
    cluster.now = failure.until
    again = cluster.tell(e.TimerFired()).commands
    assert [g.draw for n in again for g in n.command.groups] == open_draws
    assert cluster.run().status is RunStatus.COMPLETED


def test_five_failures_in_a_row_or_one_for_good_fail_the_run_in_words():
    cluster = running()
    decision = fail_next(cluster, "play_groups", "no_environment", retryable=False)
    assert (decision.status, decision.reason) == (RunStatus.FAILED, RunReason.COMMAND_FAILED)
    assert "no_environment" in decision.reason_text
    assert "log of the rollout worker" in decision.reason_text
    cluster = started(make_spec(agents={r: {"policy": "both"} for r in ("speaker", "listener")}))
    for _ in range(5):
        decision = fail_next(cluster, "bind_policy")
    assert decision.status is RunStatus.FAILED


def test_a_full_disk_makes_a_run_wait_for_as_long_as_it_takes():
    cluster = running()
    for _ in range(40):
        decision = fail_next(cluster, "optimizer_step", "state_full")
        assert (decision.status, decision.reason) == (RunStatus.RUNNING, RunReason.WAITING_FOR_SPACE)
        assert "optimizer step waits for disk space" in decision.reason_text
        assert "free some space there" in decision.reason_text
    said = [note.text for note in cluster.notes if "waits for disk space" in note.text]
    assert len(said) == len(cluster.core.state.policies), "once per policy: the log is not filled by it"
    assert cluster.run().status is RunStatus.COMPLETED
    assert cluster.core.state.lifecycle.reason is not RunReason.WAITING_FOR_SPACE


@pytest.mark.parametrize(
    ("code", "reason", "words", "next_step"),
    [
        ("upload_unavailable", RunReason.WAITING_FOR_UPLOAD, "waits for an upload", "see on Pools and nodes"),
        ("upload_quota", RunReason.WAITING_FOR_SPACE, "waits for room on another node", "FLEXMARL_UPLOAD_QUOTA_GIB"),
    ],
)
def test_a_run_waits_for_an_upload_for_as_long_as_it_takes_and_says_so(code, reason, words, next_step):
    cluster = running()
    for kind in 20 * ("optimizer_step", "bind_policy"):
        decision = fail_next(cluster, kind, code)
        assert (decision.status, decision.reason) == (RunStatus.RUNNING, reason)
        assert words in decision.reason_text
        assert next_step in decision.reason_text
    assert len([note for note in cluster.notes if words in note.text]) <= 2 * len(cluster.core.state.policies)
    assert cluster.run().status is RunStatus.COMPLETED
    assert cluster.core.state.lifecycle.reason is not reason


def test_a_wait_for_space_is_no_failure_of_the_work():
    cluster = started(make_spec(agents={r: {"policy": "both"} for r in ("speaker", "listener")}))
    for _ in range(8):
        decision = fail_next(cluster, "bind_policy", "state_full")
    for _ in range(4):
        decision = fail_next(cluster, "bind_policy")
    assert decision.status is RunStatus.STARTING
    assert fail_next(cluster, "bind_policy").status is RunStatus.FAILED


def test_a_checkpoint_waits_for_space_and_is_written_when_there_is_some():
    cluster = running()
    for _ in range(20):
        assert fail_next(cluster, "write_checkpoint", "state_full").status is not RunStatus.FAILED
    assert not [note for note in cluster.notes if "was not written" in note.text]
    assert cluster.run().status is RunStatus.COMPLETED


def test_a_checkpoint_that_cannot_be_written_does_not_end_training():
    cluster = running()
    decision = fail_next(cluster, "write_checkpoint", "disk", retryable=False)
    assert decision.status is RunStatus.RUNNING
    assert decision.notes[-1].level == "error"
    assert cluster.run().status is RunStatus.COMPLETED


def test_an_error_of_the_core_ends_the_run_only():
    cluster = running()
    decision = cluster.core.handle(e.RunGivenUp(cause="orchestrator_error", text="ValueError: x"), cluster.now)
    assert (decision.status, decision.reason) == (RunStatus.FAILED, RunReason.ORCHESTRATOR_ERROR)
    assert {n.command.kind for n in decision.commands} == {"release_lease"}


def test_a_snapshot_of_another_schema_is_refused():
    core = Orchestrator(make_spec())
    raw = core.snapshot()
    for other in (b"0", b"2"):
        with pytest.raises(ValueError, match="schema"):
            Orchestrator.restore(make_spec(), raw.replace(b'"schema":1', b'"schema":' + other))
    with pytest.raises(ValueError, match="does not fit"):
        Orchestrator.restore(make_spec(), raw.replace(b'"draft"', b'"drift"'))
