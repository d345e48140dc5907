"""Short ways decide what looking at everything decides, for every protocol, publication and fault."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexmarl.contracts.events import ChildLost, DeviceUse, MicroBatchAccumulated, PauseMode, RunVerb, Verb
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.contracts.wire import TrainStats
from flexmarl.orchestrator import Orchestrator
from flexmarl.orchestrator.run.relevance import Relevance
from flexmarl.orchestrator.serving import weight_sync
from tests.unit.orchestrator.asking import quiet
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, running, started

SURPLUS = {"cancel": 0, "join": 0, "keep": 1, "continue": 2}


def surplus_of(surplus, bound):
    return {
        "mechanisms__redundancy": {"type": "extra_groups", "extra": 3, "surplus": surplus},
        "mechanisms__lag_policy": {"bound": bound},
        "batch__rollout_groups": 1,
        "batch__min_members": 2,
        "budget__train_steps": 6,
    }


CREDIT = {"bound": 9, "at_admission": "trained", "in_flight": "continue"}
SIZED = {
    "resources": {"rollout_devices": {"min": 1, "max": 3}},
    "mechanisms__scaling": {"type": "dead_band", "steps": 1, "hold_s": 0.0},
    "budget__train_steps": 8,
}
RUNS = {
    "micro_batch": {},
    "batch": {"mechanisms__trainer_protocol": "batch"},
    "mini_batch": {"mechanisms__trainer_protocol": "mini_batch", "batch__mini_batches": 3},
    "ordered": {"mechanisms__ordered": True},
    "wavefront": {"mechanisms__publication": "wavefront"},
    "delayed": {"mechanisms__publication": "delayed", "mechanisms__lag_policy": {"bound": 1}},
    "drawn_again": {"sampling__group_filter": "dynamic_sampling", "batch__min_members": 2},
    "filtered": {"sampling__group_filter": "drop_zero_variance", "batch__min_members": 2},
    "clock": {"mechanisms__policy_clock": True, "batch__min_rows": 9},
    "carry": {"batch__min_rows": 40, "batch__max_carry": 2, "budget__train_steps": 6},
    "bounded": {"mechanisms__lag_policy": {"bound": 2}, "budget__train_steps": 6},
    "waits": {"mechanisms__lag_policy": {"bound": 1, "at_admission": "wait"}, "budget__train_steps": 6},
    "follows": {"mechanisms__lag_policy": {"bound": 2, "in_flight": "continue"}, "budget__train_steps": 6},
    "discards": {"mechanisms__lag_policy": {"bound": 2, "in_flight": "discard"}, "budget__train_steps": 6},
    "bounded_mini_batch": {
        "mechanisms__lag_policy": {"bound": 4},
        "mechanisms__trainer_protocol": "mini_batch",
        "batch__mini_batches": 3,
        "budget__train_steps": 6,
    },
    "credit": surplus_of("continue", 9) | {"mechanisms__lag_policy": CREDIT},
    "credit_dropped": surplus_of("continue", 1) | {"mechanisms__lag_policy": CREDIT | {"bound": 1, "at_cut": "drop"}},
    "credit_paused": surplus_of("pause", 9) | {"mechanisms__lag_policy": CREDIT | {"in_flight": "resume"}},
    "sized": SIZED,
    "sized_ahead": SIZED | {"mechanisms__lag_policy": {"bound": 1}},
    "surplus_ahead": surplus_of("cancel", 2),
    **{f"surplus_{surplus}": surplus_of(surplus, bound) for surplus, bound in SURPLUS.items()},
}
SHARED = {"agents": {"speaker": {"policy": "both"}, "listener": {"policy": "both"}}}
TIMED = {"budget": {"train_steps": 4, "seconds": 0.4}}


class Thorough(Relevance):
    """Looks at everything, always."""

    def seen_to(self, ctx, event):
        return False


def same_with_short_ways(cluster):
    """Tell the log to a core without short ways: every decision and the state in the end are the same."""
    thorough = Orchestrator(cluster.spec)
    thorough._relevance = Thorough()
    for number, ((event, now), decision) in enumerate(zip(cluster.log, cluster.decisions, strict=True)):
        assert thorough.handle(event, now) == decision, f"event {number}, {event}"
    assert thorough.snapshot() == cluster.core.snapshot()


@pytest.mark.parametrize("team", [{}, SHARED, TIMED], ids=["own", "shared", "timed"])
@pytest.mark.parametrize("run", RUNS)
def test_short_ways_change_no_decision(run, team):
    faults = Faults(twice=0.2, child_death=0.01, refused=0.01, recall=0.02, zombie=0.1)
    same_with_short_ways(started(make_spec(**RUNS[run], **team), seed=1, faults=faults).run())


@pytest.mark.parametrize("run", RUNS)
def test_engines_are_told_in_turns_whoever_remembers_how_far(run, monkeypatch):
    monkeypatch.setattr(weight_sync, "LOADS_AT_ONCE", 2)
    one = make_spec(**RUNS[run])
    spec = one.model_copy(update={"resources": one.resources.model_copy(update={"rollout_devices": 5})})
    cluster = started(spec, seed=2, faults=Faults(twice=0.2, child_death=0.01, recall=0.01, zombie=0.1))
    most = 0
    while cluster.status not in TERMINAL:
        cluster.happen()
        waiting = cluster.core.state.outstanding
        most = max(most, *(waiting.count_about("load", name) for name in spec.policies))
    assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
    assert most == 2
    same_with_short_ways(cluster)


def test_what_failed_is_tried_again_with_the_first_fact_after_its_back_off():
    cluster = running(make_spec())
    failed, other = [n for n in cluster.open.values() if getattr(n.command, "origin", "") == "train"][:2]
    cluster.fail(failed.no, failed.command, "busy")
    cluster.tell(cluster.inbox.pop())
    for _ in range(2):
        cluster.execute(other.no)
        early = cluster.tell(cluster.inbox.pop(0))
        assert not [n for n in early.commands if n.command.kind == "play_groups"]
    last = next(n for n in cluster.open.values() if getattr(n.command, "origin", "") == "train")
    cluster.execute(last.no)
    cluster.now = cluster.deadline
    again = cluster.tell(cluster.inbox.pop())
    assert [n.command.groups for n in again.commands if n.command.kind == "play_groups"] == [failed.command.groups]
    same_with_short_ways(cluster)


verbs = st.builds(
    RunVerb,
    verb=st.sampled_from([Verb.PAUSE, Verb.PAUSE, Verb.RESUME, Verb.STOP, Verb.KILL, Verb.RETRY]),
    mode=st.sampled_from(PauseMode),
    hold_s=st.sampled_from([None, 0.0, 3.0]),
)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    asked=st.lists(st.tuples(st.integers(0, 120), verbs), max_size=6),
    run=st.sampled_from(sorted(RUNS)),
    round_trip=st.booleans(),
    deaths=st.sampled_from([0.0, 0.02]),
)
def test_short_ways_change_no_decision_amid_verbs(seed, asked, run, round_trip, deaths):
    faults = Faults(twice=0.1, child_death=deaths, lease_end=deaths / 10, recall=deaths, uncommitted=deaths)
    cluster = started(make_spec(**RUNS[run]), seed=seed, faults=faults, round_trip=round_trip)
    for wait, verb in asked:
        for _ in range(wait):
            if cluster.status in TERMINAL or (cluster.status is RunStatus.PAUSED and quiet(cluster)):
                break
            cluster.happen()
        cluster.tell(verb)
    same_with_short_ways(cluster)


def test_gradients_for_a_trainer_that_died_cost_no_look_at_everything(monkeypatch):
    cluster = running(make_spec())
    while not any(key.startswith("accumulate:") for key in cluster.core.state.outstanding):
        cluster.happen()
    late = next(n.command for n in cluster.open.values() if n.command.kind == "accumulate")
    trainer = next(own for own in cluster.core.state.fleet.leases.values() if own.use is DeviceUse.TRAINER)
    cluster.tell(ChildLost(lease_id=trainer.lease_id, incarnation=trainer.child.incarnation))
    looked = []
    monkeypatch.setattr(Relevance, "looked", lambda self, ctx: looked.append(ctx))
    done = MicroBatchAccumulated(
        policy=late.policy, micro_batch=late.micro_batch, accumulator=late.accumulator,
        stats=TrainStats(rows=1, tokens=1, z=1.0, loss_sum=0.0, entropy_sum=0.0, seconds=0.1),
    )  # fmt: skip
    decision = cluster.tell(done)
    assert not looked
    assert not decision.commands
    same_with_short_ways(cluster)
