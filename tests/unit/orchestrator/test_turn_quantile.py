"""Turns that were said without surprise in the core: their advantages are 0, and at 0 a run is a plain one."""

import random

import pytest

from flexmarl.contracts.events import Verb
from flexmarl.contracts.wire import Origin
from tests.unit.orchestrator.fake_cluster import FakeCluster, make_spec
from tests.unit.orchestrator.fake_parts import refusals


class Surprised(FakeCluster):
    """The first turn of each role is always said with less surprise than the second."""

    def settle(self, number, command, group, members=None):
        mine, self.rng = self.rng, random.Random(group.draw)
        try:
            return super().settle(number, command, group, members)
        finally:
            self.rng = mine

    def episode(self, member, command=None):
        found = super().episode(member, command)
        if command is None or command.origin is not Origin.TRAIN or not self.spec.sampling.turn_quantile:
            return found
        return found.model_copy(update={"surprisals": tuple(float(sample.turn) for sample in found.samples)})


def run_of(**changes):
    found = Surprised(make_spec(**changes), seed=2)
    found.verb(Verb.START)
    return found.run()


def rows(cluster):
    return [
        ((row.draw, row.member, row.role, row.turn), row.advantages)
        for cut in cluster.commands("cut_micro_batch")
        for row in cut.samples
    ]


def test_turns_below_the_quantile_have_advantage_0_and_the_others_what_they_had():
    plain, found = dict(rows(run_of())), dict(rows(run_of(sampling__turn_quantile=0.99)))
    assert plain.keys() == found.keys(), "no row is left out"
    second = {(draw, role) for draw, _, role, turn in plain if turn == 1}
    assert second
    for key, advantages in found.items():
        draw, _, role, turn = key
        kept = turn == 1 or (draw, role) not in second
        assert advantages == (plain[key] if kept else (0.0,))
    assert any(any(own) for own in plain.values())


@pytest.mark.parametrize(
    ("pointer", "code", "changes"),
    [
        ("/sampling/turn_quantile", "not_with_turns", {"algorithm__advantage": "gae"}),
        (
            "/sampling/turn_quantile",
            "not_with_turns",
            {"algorithm__loss": "online_dpo", "algorithm__advantage": "best_worst"},
        ),
        ("/batch/settle", "needs_group", {"batch__settle": "episode", "algorithm__advantage": "reinforce"}),
    ],
)
def test_where_an_advantage_of_0_says_nothing_it_is_refused(pointer, code, changes):
    found = {problem.pointer: problem for problem in refusals(sampling__turn_quantile=0.2, **changes)}
    assert pointer in found, found
    assert found[pointer].code == code
