"""Members that other installations said, in the core: what is cut of them, and what the step tells of it."""

import random

import pytest

from flexmarl.contracts.events import Verb
from flexmarl.contracts.wire import Origin
from tests.unit.orchestrator.fake_cluster import FakeCluster, make_spec

OTHERS = 2
"""Members of a group, the last ones, that others said."""


class Shared(FakeCluster):
    """Groups are played alike in every run, and their last members are others'."""

    def settle(self, number, command, group, members=None):
        mine, self.rng = self.rng, random.Random(group.draw)
        try:
            return super().settle(number, command, group, members)
        finally:
            self.rng = mine

    def episode(self, member, command=None):
        found = super().episode(member, command)
        last = self.spec.batch.episodes_per_task - OTHERS
        if command is None or command.origin is not Origin.TRAIN or member < last:
            return found
        return found.model_copy(update={"shared": True})


def run_of(learn_from, shared=True):
    sharing = {"type": "exchange", "foreign": OTHERS, "learn_from": learn_from} if shared else "none"
    spec = make_spec(
        agents={"guesser": {}, "hinter": {}},
        environment={"type": "hot_cold"},
        batch__episodes_per_task=4,
        sampling={"sharing": sharing},
    )
    found = Shared(spec, seed=2)
    found.verb(Verb.START)
    return found.run()


def rows(cluster):
    return {
        (row.draw, row.member, row.role, row.turn): row.advantages
        for cut in cluster.commands("cut_micro_batch")
        for row in cut.samples
    }


def told(cluster, name):
    return sum(value for (series, *_), value in cluster.metrics.items() if series == name)


@pytest.fixture(scope="module")
def everything():
    return run_of("all")


def test_failures_of_others_are_cut_with_advantage_0_and_every_other_row_as_ever(everything):
    plain, found = rows(everything), rows(run_of("successes"))
    assert plain.keys() == found.keys(), "no row is left out"
    others = {key for key in plain if key[1] >= 4 - OTHERS}
    assert any(min(plain[key]) < 0 for key in others)
    assert any(max(plain[key]) > 0 for key in others)
    for key, advantages in found.items():
        kept = tuple(max(own, 0.0) for own in plain[key]) if key in others else plain[key]
        assert advantages == kept


def test_the_step_tells_how_many_members_others_said_and_of_how_many_nothing_was_learned(everything):
    found = run_of("successes")
    cut = rows(found)
    groups = {key[0] for key in cut}
    assert told(found, "episodes/shared") == OTHERS * len(groups) == told(everything, "episodes/shared")
    failed = {key[:2] for key, own in rows(everything).items() if key[1] >= 4 - OTHERS and max(own) < 0}
    assert failed
    assert told(found, "episodes/shared_unlearned") == len(failed)
    assert "episodes/shared_unlearned" not in {name for name, *_ in everything.metrics}
    assert "episodes/shared" not in {name for name, *_ in run_of("all", shared=False).metrics}
