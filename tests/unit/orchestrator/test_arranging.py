"""Rows that count as often as their pair is drawn: fixed at the cut, from a seed, and booked once."""

import pytest

from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.fake_cluster import make_spec, started
from tests.unit.orchestrator.test_cohorts import quiet, settle

SHUFFLED = {
    "mechanisms__trainer_protocol": "batch",
    "batch__episodes_per_task": 4,
    "sampling__arranger": {"type": "advantage_shuffle", "rounds": 4},
}


def weights_of(cluster):
    """Return what each row of each step counts: (policy, cohort) -> row -> weight."""
    found = {}
    for cut in cluster.commands("cut_micro_batch"):
        rows = found.setdefault((cut.ref.policy, cut.cohort), {})
        for sample in cut.samples:
            key = (sample.draw, sample.member, sample.role, sample.turn)
            assert key not in rows, "a row is cut once"
            rows[key] = sample.weight
    return found


@pytest.mark.parametrize("pairs", [{}, {"sampling__keep_members": 2, "sampling__keep_rule": "pairs"}], ids=str)
def test_a_whole_run_keeps_its_books_and_every_member_its_weight(pairs):
    cluster = started(make_spec(**SHUFFLED, **pairs), seed=4).run()
    assert cluster.status is RunStatus.COMPLETED
    unarranged = started(make_spec(**{**SHUFFLED, **pairs, "sampling__arranger": "none"}), seed=4).run()
    found, plain = weights_of(cluster), weights_of(unarranged)
    assert {key: set(rows) for key, rows in found.items()} == {key: set(rows) for key, rows in plain.items()}
    assert {weight for rows in plain.values() for weight in rows.values()} == {1.0}
    assert any(len(set(rows.values())) > 1 for rows in found.values())
    for (policy, cohort), rows in found.items():
        by_member = {}
        for (draw, member, _, _), weight in rows.items():
            by_member.setdefault((draw, member), set()).add(weight)
        assert all(len(own) == 1 for own in by_member.values()), "all rows of a member count alike"
        assert sum(own.pop() for own in by_member.values()) == len(by_member), "as many as there are members"
        step = cohort + 1
        assert cluster.metrics["rows/most_repeats", policy, "max", step] == max(rows.values())
        out = sum(weight == 0 for weight in rows.values())
        assert cluster.metrics["rows/left_out", policy, "share", step] == pytest.approx(out / len(rows))


def test_what_is_drawn_depends_on_the_seed_of_the_run_and_on_no_order_of_arrival():
    runs = {}
    for seed, arrivals in ((3, 1), (3, 2), (8, 1)):
        spec = make_spec(**SHUFFLED, seed=seed, budget__train_steps=1)
        cluster = started(spec, seed=5)
        dice = {}

        def episode(member, command=None, own=dice, cluster=cluster):
            made = own.setdefault(member, type(cluster).episode(cluster, member, command))
            score = float(member == 0)
            samples = tuple(
                one.model_copy(update={"turn": 0, "reward": score}) for one in made.samples if one.turn == 0
            )
            return made.model_copy(
                update={"team_score": score, "scores": dict.fromkeys(made.scores, score), "samples": samples}
            )

        cluster.episode = episode
        cluster.rng.seed(arrivals)
        cluster.run()
        runs[seed, arrivals] = weights_of(cluster)
    assert runs[3, 1] == runs[3, 2]
    assert runs[3, 1] != runs[8, 1]


def test_without_an_arranger_nothing_is_drawn_and_nothing_told():
    cluster = started(make_spec(mechanisms__trainer_protocol="batch"), seed=4).run()
    assert {weight for rows in weights_of(cluster).values() for weight in rows.values()} == {1.0}
    assert not [key for key in cluster.metrics if key[0].startswith("rows/")]


def voting(cluster, *answers):
    group = [cluster.episode(member) for member in range(len(answers))]
    return [one.model_copy(update={"answer": own, "team_score": 0.0}) for one, own in zip(group, answers, strict=True)]


def test_a_group_is_paid_by_its_vote_and_keeps_the_scores_of_its_environment():
    cluster = quiet(algorithm__shaping="majority_vote", batch__episodes_per_task=4, batch__micro_batch_groups=1)
    decision = settle(cluster, 1, voting(cluster, "7", "7", "9", ""))
    cuts = [n.command for n in decision.commands if n.command.kind == "cut_micro_batch"]
    given = {sample.member: set(sample.advantages) for cut in cuts for sample in cut.samples}
    assert given == {0: {0.5}, 1: {0.5}, 2: {-0.5}, 3: {-0.5}}
    assert cluster.core.state.cohort.tally.team.total == 0.0, "no score of the environment was changed"
    assert cluster.core.state.cohort.tally.facts.totals["vote_share"] == 0.5


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (("1", "2", "3", "4"), "1 of 4 members agree on one answer, and as many on another"),
        (("1", "1", "2", "2"), "2 of 4 members agree on one answer, and as many on another"),
        (("1", "", "", ""), "1 of 4 members agree on an answer, and least_share asks for 0.3 of them"),
        (("", "", "", ""), "0 of 4 members agree on an answer, and least_share asks for 0.3 of them"),
    ],
)
def test_a_group_without_a_majority_is_recorded_and_not_trained(answers, said):
    cluster = quiet(algorithm__shaping="majority_vote", batch__episodes_per_task=4, batch__micro_batch_groups=1)
    decision = settle(cluster, 1, voting(cluster, *answers))
    assert not [n for n in decision.commands if n.command.kind == "cut_micro_batch"]
    (ruling,) = [one for one in decision.rulings if one.kind is RulingKind.GROUP_REFUSED]
    assert ruling.reason == f"group 1 refused: {said}"
    assert cluster.core.state.cohort.groups.refused == 1


def test_a_whole_run_by_votes_keeps_its_books():
    cluster = started(make_spec(algorithm__shaping="majority_vote", batch__episodes_per_task=4))
    plain = cluster.episode
    cluster.episode = lambda member, command=None: plain(member, command).model_copy(
        update={"answer": cluster.rng.choice(("1", "1", "2", ""))}
    )
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert 0.25 <= cluster.metrics["fact/vote_share", "", "mean", 1] <= 1.0
