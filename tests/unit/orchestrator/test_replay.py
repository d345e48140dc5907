"""Replay in the core: what a step is taken on again, and that runs without it are what they were."""

import random

import pytest

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator import Orchestrator
from flexmarl.orchestrator.cohorts.replay import drawn
from flexmarl.orchestrator.context import Context
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec, started
from tests.unit.orchestrator.fake_parts import refusals

ARCHIVE = {"type": "archive", "share": 0.5, "max_age": 2}
CLIPPED = {"algorithm__loss": "ppo_clip"}


def replayed(cluster):
    """Return the draws of each cohort's replayed micro-batches, by policy."""
    found = {}
    for cut in cluster.commands("cut_micro_batch"):
        if cut.replayed:
            found.setdefault((cut.cohort, cut.ref.policy), []).extend(s.draw for s in cut.samples)
    return found


def commands(cluster):
    return [(n.no, n.command.model_dump_json()) for d in cluster.decisions for n in d.commands]


@pytest.mark.parametrize("ordered", [False, True])
def test_without_a_share_a_run_decides_what_a_plain_one_does(ordered):
    plain, empty = (
        started(make_spec(mechanisms__ordered=ordered, sampling__replay=replay), seed=4, faults=Faults(twice=0.2)).run()
        for replay in ("none", ARCHIVE | {"share": 0.0})
    )
    assert commands(plain) == commands(empty)
    assert plain.metrics == {key: value for key, value in empty.metrics.items() if not key[0].startswith("replay/")}
    assert not empty.replayed


def test_the_first_step_is_a_plain_one_and_later_ones_are_taken_on_half_of_older_groups():
    cluster = started(make_spec(sampling__replay=ARCHIVE), seed=2).run()
    found = replayed(cluster)
    assert {cohort for cohort, _ in found} == {1, 2, 3}
    for (cohort, _), draws in found.items():
        groups = set(draws)
        assert len(groups) <= 6
        assert all(draw < 6 * cohort for draw in groups), "of earlier steps alone"
    series = cluster.metrics
    assert series["replay/rows", "speaker", "sum", 1] == 0.0
    assert series["replay/share", "speaker", "share", 3] == pytest.approx(0.5, abs=0.1)
    assert series["replay/age", "speaker", "max", 3] <= 2.0


def test_a_step_without_a_group_of_its_own_replays_nothing():
    spec = make_spec(sampling__replay=ARCHIVE, sampling__group_filter="drop_zero_variance")
    cluster = started(spec, seed=2)
    cluster.run(until=lambda x: x.core.state.step == 2)
    assert any(cluster.core.state.archive.values())
    cluster.episode = lambda member, command=None: (
        type(cluster)
        .episode(cluster, 0, command)
        .model_copy(update={"member": member, "team_score": 1.0, "scores": {"speaker": 1.0, "listener": 1.0}})
    )
    before = len(cluster.replayed)
    cluster.run(until=lambda x: x.core.state.step == 3 or x.status is RunStatus.FAILED)
    assert len(cluster.replayed) == before


class Fixed(FakeCluster):
    """What a group earns depends on its draw alone."""

    def settle(self, number, command, group, members=None):
        mine, self.rng = self.rng, random.Random(group.draw)
        try:
            return super().settle(number, command, group, members)
        finally:
            self.rng = mine


def test_an_ordered_run_replays_the_same_rows_in_any_order_of_facts_and_whoever_dies():
    spec = make_spec(sampling__replay=ARCHIVE, mechanisms__ordered=True)
    found = []
    for seed in range(4):
        faults = Faults(twice=0.3, child_death=0.01, uncommitted=0.05, refused=0.02, zombie=0.2) if seed else Faults()
        cluster = Fixed(spec, seed=seed, faults=faults, round_trip=seed == 3)
        cluster.verb(Verb.START)
        cluster.run()
        assert cluster.status is RunStatus.COMPLETED
        found.append({key: cluster.micro_batches[key] for key in cluster.replayed})
    assert found[0]
    assert found[1:] == found[:1] * 3


def test_a_driver_that_takes_over_in_mid_step_draws_the_same():
    """From each moment of the log on, a core restored there decides what the first one did."""
    spec = make_spec(sampling__replay=ARCHIVE | {"max_uses": 2, "order": "newest"})
    cluster = started(spec, seed=5, faults=Faults(child_death=0.01)).run()
    assert cluster.replayed
    core = Orchestrator(spec)
    for number, (event, now) in enumerate(cluster.log):
        if number % 7 == 0:
            core = Orchestrator.restore(spec, core.snapshot())
        assert core.handle(event, now).commands == cluster.decisions[number].commands
    assert core.snapshot() == cluster.core.snapshot()


def test_a_new_attempt_begins_with_an_empty_archive():
    cluster = started(make_spec(sampling__replay=ARCHIVE), seed=3)
    cluster.run(until=lambda x: x.core.state.step == 2)
    assert any(cluster.core.state.archive.values())
    cluster.verb(Verb.KILL)
    cluster.run()
    while cluster.inbox:
        cluster.deliver(0)
    cluster.verb(Verb.RETRY)
    assert not cluster.core.state.archive


@pytest.mark.parametrize(
    ("pointer", "code", "changes"),
    [
        ("/algorithm/correction/type", "needs_correction", {}),
        ("/algorithm/correction/type", "needs_correction", {"algorithm__correction": "sequence_filter"}),
        ("/algorithm/correction/type", "not_with_replay", {**CLIPPED, "algorithm__correction": "mask_stale"}),
        ("/algorithm/advantage/type", "not_with_replay", {**CLIPPED, "algorithm__advantage": "gae"}),
        ("/algorithm/loss/type", "not_with_replay", {"algorithm__loss": "online_dpo"}),
        ("/algorithm/advantage/type", "not_with_replay", {**CLIPPED, "algorithm__advantage": "reinforce_pp"}),
        ("/mechanisms/trainer_protocol", "not_with_replay", {**CLIPPED, "mechanisms__trainer_protocol": "mini_batch"}),
        ("/mechanisms/policy_clock", "not_with_replay", {**CLIPPED, "mechanisms__policy_clock": True}),
        ("/batch/min_rows", "not_with_replay", {**CLIPPED, "batch__min_rows": 20}),
        ("/batch/settle", "not_with_replay", {**CLIPPED, "batch__settle": "episode"}),
    ],
)
def test_what_would_be_wrong_is_refused_with_a_legal_value(pointer, code, changes):
    found = [(one.pointer, one.code) for one in refusals(sampling__replay=ARCHIVE, **changes)]
    assert (pointer, code) in found
    assert (pointer, code) not in [(one.pointer, one.code) for one in refusals(**changes)]


@pytest.mark.parametrize(
    "legal", [CLIPPED, {"algorithm__correction": "truncated_importance"}, {"algorithm__loss": "cispo"}]
)
def test_a_loss_or_a_correction_with_the_ratio_is_legal(legal):
    assert refusals(sampling__replay=ARCHIVE, **legal) == []


def test_a_cohort_that_has_drawn_draws_no_more():
    cluster = started(make_spec(sampling__replay=ARCHIVE | {"share": 0.2, "max_age": 9}), seed=2)
    cluster.run(until=lambda x: x.core.state.cohort and all(map(has_drawn, x.core.state.cohort.policies.values())))
    core = cluster.core
    ctx = Context(core.plan, core.state, cluster.now)
    assert all(one.last < core.state.cohort.no for own in core.state.archive.values() for one in own[:1])
    assert [drawn(ctx, core.state.cohort, name) for name in core.state.cohort.policies] == [[], []]


def has_drawn(part):
    return part.rows.replayed and not part.stepped
