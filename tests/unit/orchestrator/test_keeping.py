"""Which checkpoints stay: the newest, the best evaluated, every so many steps; and what is let go, at once."""

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.resources import Checkpoints
from flexmarl.orchestrator.training.checkpoint_retention import kept
from tests.unit.orchestrator.fake_cluster import make_spec, running


def test_each_rule_keeps_its_own_and_says_so():
    scores = {2: (0.5, 1.0), 4: (0.9, 1.0), 6: (0.9, 2.0), 8: None, 10: (0.1, 0.0)}
    rules = Checkpoints(every_steps=2, keep_last=2, keep_best=2, keep_every=4)
    assert kept(scores, rules) == {
        4: ("best", "every"), 6: ("best",), 8: ("last", "every"), 10: ("last",),
    }  # fmt: skip


def test_a_tie_is_the_earlier_ones_and_no_best_is_kept_where_none_is_asked_for():
    scores = {1: (1.0, 1.0), 2: (1.0, 1.0), 3: (0.0, 0.0)}
    assert kept(scores, Checkpoints(keep_last=1)) == {1: ("best",), 3: ("last",)}
    assert kept(scores, Checkpoints(keep_last=1, keep_best=0)) == {3: ("last",)}


def test_a_run_keeps_by_its_rules_and_forgets_what_it_let_go():
    spec = make_spec(
        checkpoints__every_steps=1, checkpoints__keep_last=2, checkpoints__keep_best=1, checkpoints__keep_every=3,
        budget__train_steps=8,
    )  # fmt: skip
    cluster = running(spec)
    cluster.run()
    written = {step for _, step, _ in cluster.checkpoints}
    last = cluster.kept[-1]
    steps = {one.step for one in last.kept}
    assert written >= set(range(1, 9))
    assert last.newest == 8
    assert {3, 6, 7, 8} <= steps
    assert len(steps) <= 5
    assert set(cluster.core.state.history.cuts) == steps
    best = [one for one in last.kept if "best" in one.why]
    assert len(best) == 1
    assert best[0].score is not None


def test_a_rule_that_no_checkpoint_can_meet_is_refused():
    raw = {"checkpoints": {"every_steps": 10, "keep_every": 25}}
    with pytest.raises(SpecProblems) as refused:
        resolve(raw, template="reference_game")
    [problem] = refused.value.problems
    assert (problem.pointer, problem.code, problem.hint) == ("/checkpoints/keep_every", "not_a_multiple", "Set 20.")
