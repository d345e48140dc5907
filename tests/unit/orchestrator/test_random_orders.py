"""Random orders, repetitions, deaths and refusals: whatever happens, the run ends and every sample is trained once."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexmarl.contracts.events import PauseMode, RunVerb, Verb
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.orchestrator import Orchestrator
from tests.support.forms import form
from tests.unit.orchestrator.asking import quiet
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec, started

pytestmark = pytest.mark.slow

RESCUE = {"sampling__task_sampler": {"type": "greso", "tasks": 8, "least_easy": 1.0, "least_hard": 1.0}}
PRESETS = {
    "flexmarl": {},
    "sync": {"mechanisms__trainer_protocol": "batch"},
    "ordered": {"mechanisms__ordered": True},
    "ordered_sync": {"mechanisms__ordered": True, "mechanisms__trainer_protocol": "batch"},
    "drawn_again": {"sampling__group_filter": "dynamic_sampling", "mechanisms__lag_policy__bound": 1},
    "ordered_drawn_again": {"sampling__group_filter": "dynamic_sampling", "mechanisms__ordered": True},
    "filtered": {"sampling__group_filter": "drop_zero_variance", "batch__min_members": 2},
    "wavefront": {"mechanisms__publication": "wavefront", "batch__min_rows": 20},
    "delayed": {"mechanisms__publication": "delayed", "mechanisms__lag_policy__bound": 1},
    "mini_batch": {
        "mechanisms__trainer_protocol": "mini_batch",
        "batch__mini_batches": 2,
        "mechanisms__lag_policy__bound": 1,
    },
    "places": {"resources": {"rollout_devices": 2, "engine_policies": 1}},
    "places_and_lag": {
        "resources": {"rollout_devices": 3, "engine_policies": 1},
        "mechanisms__lag_policy__bound": 2,
    },
    "elastic": {"resources": {"rollout_devices": {"min": 1, "max": 3}}},
    "elastic_ordered": {"resources": {"rollout_devices": {"min": 2, "max": 4}}, "mechanisms__ordered": True},
    "elastic_and_lag": {
        "resources": {"rollout_devices": {"min": 1, "max": 4}},
        "mechanisms__lag_policy__bound": 2,
    },
    "replay": {"sampling__replay": {"type": "archive", "share": 0.5, "max_age": 2}},
    "ordered_replay": {"sampling__replay": {"type": "archive", "share": 0.5}, "mechanisms__ordered": True},
    "replay_and_lag": {
        "sampling__replay": {"type": "archive", "share": 0.4, "max_age": 3, "max_uses": 2, "order": "newest"},
        "mechanisms__lag_policy__bound": 2,
    },
    "rescue": {**RESCUE, "sampling__replay": {"type": "rescue", "max_age": 4, "max_uses": 2}},
    "rescue_and_lag": {
        **RESCUE,
        "sampling__replay": {"type": "rescue", "max_age": 5},
        "mechanisms__lag_policy__bound": 2,
    },
    "policy_clock": {"mechanisms__policy_clock": True, "batch__min_rows": 20, "batch__max_carry": 2},
}
SHARED = {
    "agents": {
        "speaker": {"policy": "both"},
        "listener": {"policy": "both"},
    }
}
FROZEN = {"agents": {"speaker": {"trainable": False}, "listener": {}}}


def account(cluster):
    """Every trained row belongs to a settled group; every finished group's rows are trained or recorded."""
    state, episodes = cluster.core.state, cluster.core.state.totals.train_episodes
    assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
    assert state.totals.samples_trained == len(cluster.trained)
    cut = {key: len(rows) for key, rows in cluster.micro_batches.items()}
    again = sum(cut.pop(key) for key in cluster.replayed)
    assert state.totals.samples_trained == sum(cut.values())
    assert state.totals.rows_replayed == again == sum(map(len, cluster.replays.values()))
    for policy, history in cluster.versions.items():
        assert state.policies[policy].version == len(history) - 1


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("team", [{}, SHARED, FROZEN], ids=["own", "shared", "frozen"])
def test_a_run_completes_in_any_order_of_facts(preset, team):
    for seed in range(form(short=2, full=4)):
        cluster = started(make_spec(**PRESETS[preset], **team), seed=seed, faults=Faults(twice=0.2)).run()
        assert cluster.status is RunStatus.COMPLETED
        assert cluster.core.state.step == 4
        account(cluster)


chances = st.sampled_from([0.0, 0.0, 0.02, 0.1])
faults = st.builds(
    Faults,
    twice=st.sampled_from([0.0, 0.3]),
    child_death=st.sampled_from([0.0, 0.005, 0.02]),
    lease_end=st.sampled_from([0.0, 0.002]),
    recall=st.sampled_from([0.0, 0.01, 0.05]),
    surplus_recall=st.sampled_from([0.0, 0.02, 0.1]),
    gang_recall=st.sampled_from([0.0, 0.3]),
    uncommitted=chances,
    refused=st.sampled_from([0.0, 0.02]),
    zombie=st.sampled_from([0.0, 0.2]),
    episode_failure=st.sampled_from([0.0, 0.02, 0.2]),
)


def examples(number: int) -> settings:
    """Return settings that try so many examples, the same ones each time."""
    return settings(max_examples=number, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@examples(form(short=50, full=120))
@given(
    seed=st.integers(0, 10_000),
    faults=faults,
    preset=st.sampled_from(sorted(PRESETS)),
    team=st.sampled_from([{}, SHARED, FROZEN]),
    round_trip=st.booleans(),
)
def test_deaths_refusals_and_repetitions_lose_nothing(seed, faults, preset, team, round_trip):
    spec = make_spec(**PRESETS[preset], **team)
    cluster = started(spec, seed=seed, faults=faults, round_trip=round_trip).run()
    state = cluster.core.state
    # Many deaths in a row may legitimately exhaust the patience of a run, in words; nothing else may end it early.
    allowed = {RunReason.COMMAND_FAILED, RunReason.CHILDREN_LOST, RunReason.EPISODES_FAILED}
    assert state.lifecycle.status is RunStatus.COMPLETED or (
        state.lifecycle.reason in allowed and state.lifecycle.reason_text
    )
    if state.lifecycle.status is RunStatus.COMPLETED:
        account(cluster)
        assert state.step == 4


SELDOM = {"lease_end": 0.002, "child_death": 0.005, "gang_recall": 0.3, "zombie": 0.2}


@pytest.mark.parametrize(
    ("preset", "team", "seed", "faults"),
    [
        ("wavefront", {}, 8233, Faults(episode_failure=0.2, **SELDOM)),
        ("places_and_lag", FROZEN, 5899, Faults(episode_failure=0.02, uncommitted=0.02, **SELDOM)),
        ("delayed", FROZEN, 2562, Faults(episode_failure=0.02, twice=0.3, recall=0.05, refused=0.02, **SELDOM)),
    ],
)
def test_what_a_run_opens_while_its_gang_is_recalled_is_counted_when_it_goes_on(preset, team, seed, faults):
    """A gang was recalled before the evaluation or the cohort that follows a step was opened."""
    cluster = started(make_spec(**PRESETS[preset], **team), seed=seed, faults=faults).run()
    assert cluster.status is RunStatus.COMPLETED
    account(cluster)


def test_mild_faults_never_end_a_run():
    mild = Faults(twice=0.1, child_death=0.004, uncommitted=0.05, zombie=0.2, episode_failure=0.01)
    for seed in range(form(short=10, full=25)):
        cluster = started(make_spec(batch__min_members=2), seed=seed, faults=mild).run()
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
        account(cluster)


def settle_facts(cluster):
    """Hand over what is told already: the driver takes it before any verb that is asked for later."""
    facts, cluster.faults = cluster.faults, Faults()
    while cluster.inbox:
        cluster.deliver(0)
    cluster.faults = facts


asked = st.builds(
    RunVerb,
    verb=st.sampled_from([Verb.PAUSE, Verb.PAUSE, Verb.RESUME, Verb.RESUME, Verb.STOP, Verb.KILL, Verb.RETRY]),
    mode=st.sampled_from(PauseMode),
    hold_s=st.sampled_from([None, 0.0, 0.05, 3.0]),
)


@examples(form(short=70, full=200))
@given(
    seed=st.integers(0, 10_000),
    verbs=st.lists(st.tuples(st.integers(0, 120), asked), max_size=8),
    faults=faults,
    preset=st.sampled_from(sorted(PRESETS)),
    round_trip=st.booleans(),
)
def test_verbs_at_any_moment_keep_the_invariants(seed, verbs, faults, preset, round_trip):
    cluster = started(make_spec(**PRESETS[preset]), seed=seed, faults=faults, round_trip=round_trip)
    for number, (wait, verb) in enumerate(verbs):
        for _ in range(wait):
            if cluster.status in TERMINAL or (cluster.status is RunStatus.PAUSED and quiet(cluster)):
                break
            cluster.happen()
        if cluster.status in TERMINAL:
            settle_facts(cluster)
        cluster.tell(verb.model_copy(update={"operation": str(number)}))
    if cluster.status in (RunStatus.PAUSED, RunStatus.PAUSING):
        cluster.verb(Verb.RESUME)
    cluster.run()
    settle_facts(cluster)
    # Whatever was asked for and whoever died: the counts add up and nothing is trained twice (the cluster checks that).
    state, episodes = cluster.core.state, cluster.core.state.totals.train_episodes
    assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
    assert state.totals.samples_trained == len(cluster.trained)
    for policy, history in cluster.versions.items():
        assert state.policies[policy].version == len(history) - 1
    if state.lifecycle.status is RunStatus.COMPLETED and state.lifecycle.reason is RunReason.BUDGET_STEPS:
        assert state.step == 4
    outcomes = [outcome.operation for d in cluster.decisions for outcome in d.outcomes]
    assert sorted(outcomes) == [str(number) for number in range(len(verbs))]
    changes = [change for d in cluster.decisions for change in d.attempts]
    numbers = [change.no for change in changes]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, state.lifecycle.attempt.no + 1))
    assert all(numbers.count(number) == 2 for number in set(numbers)), "each attempt begins once and ends once"


def test_a_log_with_rests_and_retries_gives_equal_decisions():
    cluster = started(make_spec(), seed=7, faults=Faults(child_death=0.01, uncommitted=0.05))
    plan = ((40, Verb.PAUSE, PauseMode.FREEZE), (20, Verb.RESUME, PauseMode.DRAIN), (60, Verb.KILL, PauseMode.DRAIN))
    for wait, verb, mode in plan:
        for _ in range(wait):
            if cluster.status is not RunStatus.PAUSED or not quiet(cluster):
                cluster.happen()
        cluster.tell(RunVerb(verb=verb, mode=mode, hold_s=0.0, operation=verb))
    settle_facts(cluster)
    cluster.tell(RunVerb(verb=Verb.RETRY, operation="retry"))
    cluster.run()
    assert cluster.core.state.lifecycle.attempt.no >= 2
    again = Orchestrator(cluster.spec)
    for (event, now), decision in zip(cluster.log, cluster.decisions, strict=True):
        assert again.handle(event, now) == decision
    assert again.snapshot() == cluster.core.snapshot()


def test_equal_logs_give_equal_decisions_and_a_snapshot_at_any_event_continues_alike():
    spec = make_spec(batch__min_members=2)
    faults = Faults(twice=0.1, child_death=0.01, uncommitted=0.05, episode_failure=0.05)
    cluster = started(spec, seed=11, faults=faults).run()
    again = Orchestrator(spec)
    snapshots = []
    for (event, now), decision in zip(cluster.log, cluster.decisions, strict=True):
        assert again.handle(event, now) == decision
        snapshots.append(again.snapshot())
    assert again.snapshot() == cluster.core.snapshot()
    for cut in range(0, len(snapshots), 7):
        resumed = Orchestrator.restore(spec, snapshots[cut])
        assert resumed.snapshot() == snapshots[cut]
        tail = zip(cluster.log[cut + 1 :], cluster.decisions[cut + 1 :], strict=True)
        assert all(resumed.handle(event, now) == decision for (event, now), decision in tail)
        assert resumed.snapshot() == snapshots[-1]


def test_a_whole_log_told_again_changes_nothing():
    cluster = started(seed=5).run()
    before = cluster.core.snapshot()
    for event, _ in cluster.log:
        if not isinstance(event, RunVerb):
            decision = cluster.core.handle(event, cluster.now)
            assert not decision.void
            assert all(n.command.kind == "release_lease" for n in decision.commands)
    after = FakeCluster(cluster.spec)
    after.core = Orchestrator.restore(cluster.spec, before)
    assert after.core.state.totals.samples_trained == cluster.core.state.totals.samples_trained
    assert after.core.state.lifecycle.status is cluster.core.state.lifecycle.status
