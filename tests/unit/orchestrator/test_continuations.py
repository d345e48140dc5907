"""Continuations in the core: what is said of them, what the predictor is told, and that restarts change nothing."""

import random

import pytest

from flexmarl.algorithms.prefix_predictor import PRIOR
from flexmarl.contracts.events import Verb
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Branch, Origin, Prefix
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec
from tests.unit.orchestrator.fake_parts import refusals

MEMBERS, ROOTS = 6, 3
RUN = {"sampling__branch_controller": "trace", "batch__episodes_per_task": MEMBERS}


class Growing(FakeCluster):
    """Members from 3 on say the second turn of a listener once more, after the first turn of another member."""

    turns_apart = True

    def settle(self, number, command, group, members=None):
        mine, self.rng = self.rng, random.Random(group.draw) if self.turns_apart else self.rng
        try:
            return super().settle(number, command, group, members)
        finally:
            self.rng = mine

    def episode(self, member, command=None):
        found = super().episode(member, command)
        if command is None or command.origin is not Origin.TRAIN or not found.samples:
            return found
        if not self.spec.sampling.branch_controller.continuations(MEMBERS):
            return found
        first, last = found.samples[0], found.samples[-1].model_copy(update={"turn": 0})
        if member < ROOTS:
            branch, samples = Branch(prefixes=(Prefix(turns=1, logprob=-0.5),)), (first, last)
        else:
            branch, samples = Branch(root=member % ROOTS, turns=1, predicted=0.25, value=0.75), (last,)
        return found.model_copy(update={"samples": samples, "branch": branch})


def run_of(seed=2, faults=None, round_trip=False, **changes):
    found = Growing(make_spec(**RUN | changes), seed=seed, faults=faults or Faults(), round_trip=round_trip)
    found.verb(Verb.START)
    return found


def commands(cluster):
    return [(n.no, n.command.model_dump_json()) for d in cluster.decisions for n in d.commands]


def predictors(cluster):
    """Cohort -> weights that its commands carry."""
    found = {}
    for command in cluster.commands("play_groups"):
        if command.origin is Origin.TRAIN:
            found.setdefault(command.cohort, set()).add(command.predictor)
        else:
            assert command.predictor == ()
    return found


def test_a_step_plays_by_what_the_steps_before_it_showed():
    cluster = run_of().run()
    assert cluster.status is RunStatus.COMPLETED
    found = predictors(cluster)
    assert found[0] == {()}
    assert all(len(own) == 1 and len(next(iter(own))) == len(PRIOR) for no, own in found.items() if no)
    assert len(set.union(*found.values())) == len(found), "it is fitted after every step"
    assert not cluster.core.state.choice.prefixes.waiting


def test_without_a_predictor_all_steps_play_alike_and_nothing_waits():
    cluster = run_of(sampling__branch_controller={"type": "trace", "predictor": "none"}).run()
    assert set.union(*predictors(cluster).values()) == {()}
    assert not cluster.core.state.choice.prefixes.waiting
    assert any(r.kind is RulingKind.GROUP_BRANCHED for d in cluster.decisions for r in d.rulings)


def test_a_group_says_once_what_was_continued_and_why():
    cluster = run_of().run()
    said = [r for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.GROUP_BRANCHED]
    assert len({ruling.target for ruling in said}) == len(said) == 4 * 6
    for ruling in said:
        assert "3 members go on where another outcome is likeliest: 3 after 1 turn of 0, which " in ruling.reason
        assert "(predicted success 0.25, adds 0.75)" in ruling.reason


def test_rows_have_the_advantages_of_the_tree_and_each_turn_is_in_one():
    cluster = run_of().run()
    rows = [row for cut in cluster.commands("cut_micro_batch") for row in cut.samples]
    keys = [(row.draw, row.member, row.role, row.turn) for row in rows]
    assert len(keys) == len(set(keys)) == 4 * 6 * (2 * ROOTS + MEMBERS - ROOTS)
    listened = {(row.draw, row.member): row.advantages[0] for row in rows if row.role == "listener"}
    for (draw, member), advantage in listened.items():
        if member >= ROOTS:
            assert advantage == pytest.approx(-listened[draw, member % ROOTS]), "two siblings"


@pytest.mark.parametrize("ordered", [False, True])
def test_where_nobody_continues_a_run_decides_what_a_plain_one_does(ordered):
    plain, other = (
        run_of(sampling__branch_controller=kind, mechanisms__ordered=ordered).run()
        for kind in ("none", {"type": "trace", "share": 0})
    )
    assert commands(plain) == commands(other)
    assert plain.metrics == other.metrics


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mechanisms__ordered": True},
        {"mechanisms__lag_policy": {"bound": 2}},
        {"mechanisms__lag_policy": {"bound": 2, "in_flight": "discard"}},
        {"sampling__group_filter": {"type": "dynamic_sampling", "draw_limit": 3}},
        {"mechanisms__redundancy": {"type": "extra_groups", "extra": 2}},
    ],
    ids=["plain", "ordered", "lag", "discard", "dynamic", "surplus"],
)
def test_episodes_add_up_whatever_happens(changes):
    for seed in range(2):
        faults = Faults(twice=0.2, child_death=0.01, episode_failure=0.1, refused=0.02)
        cluster = run_of(seed, faults, **changes).run()
        assert cluster.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        episodes = cluster.core.state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled


def test_an_ordered_run_is_the_same_whoever_is_killed_and_whatever_settles_first():
    plain = run_of(mechanisms__ordered=True).run()
    for seed in range(3):
        faults = Faults(twice=0.3, child_death=0.02, uncommitted=0.05)
        killed = run_of(seed, faults, mechanisms__ordered=True).run()
        assert predictors(killed) == predictors(plain)


def test_a_restored_core_and_a_repeated_log_decide_the_same():
    whole, restored = run_of().run(), run_of(round_trip=True).run()
    assert commands(whole) == commands(restored)
    again = Orchestrator(whole.spec)
    for (event, now), decision in zip(whole.log, whole.decisions, strict=True):
        assert again.handle(event, now) == decision
    assert again.snapshot() == whole.core.snapshot()


def test_a_new_attempt_forgets_what_waited_and_keeps_what_was_learned():
    cluster = run_of(budget__train_steps=6).run(until=lambda x: x.core.state.step == 2)
    weights = list(cluster.core.state.choice.prefixes.weights)
    cluster.core.state.choice.prefixes.waiting[99] = {}
    cluster.verb(Verb.KILL)
    cluster.run()
    while cluster.inbox:
        cluster.deliver(0)
    cluster.verb(Verb.RETRY)
    assert not cluster.core.state.choice.prefixes.waiting
    assert cluster.core.state.choice.prefixes.weights == weights != []


TREE = {
    "agents": {"guesser": {}, "hinter": {}},
    "environment": {"type": "hot_cold"},
    "batch__episodes_per_task": 8,
    "sampling__branch_controller": "trace",
}


@pytest.mark.parametrize(
    ("pointer", "code", "changes"),
    [
        ("/algorithm/advantage/type", "not_with_branches", {"algorithm__advantage": "rloo"}),
        ("/algorithm/advantage/per_turn", "not_with_branches", {"algorithm__advantage": {"per_turn": True}}),
        (
            "/algorithm/advantage/baseline_over",
            "not_with_branches",
            {"algorithm__advantage": {"baseline_over": "rows"}},
        ),
        ("/algorithm/group_key", "not_with_branches", {"algorithm__group_key": "team"}),
        ("/algorithm/shaping/type", "not_with_branches", {"algorithm__shaping": "overlong"}),
        ("/sampling/keep_members", "not_with_branches", {"sampling__keep_members": 4}),
        ("/sampling/replay/type", "not_with_branches", {"sampling__replay": {"type": "rescue"}}),
        ("/batch/min_members", "not_with_branches", {"batch__min_members": 4}),
        ("/batch/incomplete_group", "not_with_branches", {"batch__incomplete_group": "score"}),
        (
            "/mechanisms/redundancy/type",
            "not_with_branches",
            {"mechanisms__redundancy": {"type": "extra_members", "extra": 1}},
        ),
        ("/mechanisms/parallel/turns", "not_with_branches", {"mechanisms__parallel": {"turns": "together"}}),
        (
            "/mechanisms/publication/type",
            "not_with_branches",
            {"mechanisms__ordered": True, "mechanisms__publication": "delayed", "mechanisms__lag_policy": {"bound": 1}},
        ),
        ("/batch/episodes_per_task", "out_of_range", {"batch__episodes_per_task": 2}),
        (
            "/sampling/branch_controller/share",
            "not_read",
            {"sampling__branch_controller": {"type": "at_grpo_tree", "share": 0.5}},
        ),
    ],
)
def test_what_trees_cannot_be_combined_with_is_refused_with_a_legal_value(pointer, code, changes):
    found = {problem.pointer: problem for problem in refusals(**TREE | changes)}
    assert pointer in found, found
    assert found[pointer].code == code
    assert found[pointer].hint


def test_what_goes_with_trees_is_accepted():
    sampling = {"sampling__members": {"type": "mixed_outcomes", "least": 4}, "sampling__replay": "archive"}
    sampler = {"sampling__task_sampler": {"type": "vade", "tasks": 32}}
    assert not refusals(**TREE | sampling | sampler | {"algorithm__loss": "ppo_clip"})
