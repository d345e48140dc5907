"""Questions of reasoning-gym: what is held out is never trained on, and whatever a model writes becomes a score."""

import random
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("reasoning_gym")

from reasoning_gym.factory import DATASETS

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.graphs import SequenceGraph
from flexmarl.contracts.specification.reasoning_gym import Dataset, ReasoningGym
from flexmarl.language.answers import answer_in
from workers.rollout.environments.base import Reply
from workers.rollout.environments.generators import GeneratorRows, UnusableGenerator, configured, refusal
from workers.rollout.environments.reasoning_gym_questions import (
    NO_ANSWER,
    NOT_SCORED,
    GymQuestion,
)
from workers.rollout.environments.registry import family_of

PARTS = {
    "datasets": [
        {"name": "gcd", "weight": 1, "config": {"max_value": 20}},
        {"name": "time_intervals", "weight": 2.5, "config": {"min_date": "2001-02-03", "max_date": "2002-03-04"}},
    ]
}


def rows_of(dataset: str = "chain_sum", **settings: Any) -> GeneratorRows:
    return GeneratorRows(ReasoningGym(dataset=dataset, **settings))


def asked(dataset: str, held_out: int = 1, form: str = "whole", **settings: Any) -> GymQuestion:
    rows = rows_of(dataset, held_out=held_out, **settings)
    return GymQuestion(rows, rows.held_out[0], form)


def test_every_generator_of_the_package_can_be_named() -> None:
    assert get_args(Dataset) == tuple(sorted(DATASETS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_every_generator_asks_and_scores() -> None:
    """Its own answer is worth 1 where it has one, and nothing that a model says is worth more or raises."""
    for name in get_args(Dataset):
        rows = rows_of(name, held_out=1, config=PARTS if name == "composite" else {})
        for row in (rows.held_out[0], rows.training(0)):
            question = GymQuestion(rows, row, "whole")
            if row["answer"] is not None:
                assert question.judge(str(row["answer"])).score == 1.0, name
            assert all(0.0 <= question.judge(said).score <= 1.0 for said in ("7", "[1, 2]", "I do not know", "x"))


def test_equal_seeds_give_equal_questions_and_others_others() -> None:
    first, again, other = (rows_of(seed=seed, held_out=8) for seed in (3, 3, 4))
    assert first.held_out == again.held_out
    assert [first.training(n) for n in range(8)] == [again.training(n) for n in range(8)]
    assert first.held_out != other.held_out


@pytest.mark.parametrize("config", [{"max_value": 4}, {"max_value": 5}])
def test_no_question_is_on_both_sides(config: dict[str, int]) -> None:
    """Of 16 or 25 questions 6 are held out: many rows to train on are passed over."""
    rows = rows_of("gcd", config=config, held_out=6, training=200)
    kept = {row["question"] for row in rows.held_out}
    trained = {rows.training(number)["question"] for number in range(200)}
    assert len(kept) == 6
    assert trained
    assert not kept & trained


def test_more_held_out_than_there_are_questions_is_refused_with_how_many_fit() -> None:
    said = refusal(ReasoningGym(dataset="gcd", config={"max_value": 2}, held_out=50))
    assert said["below"] == "/held_out"
    assert "different questions among 100, 50 are wanted" in said["detail"]
    fits = int(said["hint"].removeprefix("Set ").removesuffix("."))
    assert refusal(ReasoningGym(dataset="gcd", config={"max_value": 2}, held_out=fits)) == {}


@pytest.mark.parametrize(
    ("form", "said", "answer"),
    [
        ("whole", " 12 apples\n", "12 apples"), ("whole", " \n", None),
        ("number", "3 + 4 is 7.", "7"), ("number", "-2.5", "-2.5"), ("number", "seven", None),
        ("tag", "so <answer> a\nb </answer>", "a\nb"), ("tag", "<answer>1</answer> <answer>2</answer>", "2"),
        ("tag", "12", None), ("tag", "<answer></answer>", None),
    ],
)  # fmt: skip
def test_an_answer_is_read_in_its_form(form: str, said: str, answer: str | None) -> None:
    assert answer_in(form, said) == answer


def test_a_reply_without_an_answer_is_worth_nothing_and_says_why() -> None:
    episode = family_of(ReasoningGym(answer="tag", graph=SequenceGraph())).make(0, True, random.Random(0))
    episode.act([Reply("solver", "12")])
    answer = episode.describe()["facts"]["answer"]
    episode.act([Reply("reviser", f"<answer>{answer}</answer>")])
    outcome = episode.outcome()
    assert outcome.scores == {"solver": 0.0, "reviser": 1.0}
    assert outcome.facts == {NO_ANSWER: 0.5, NOT_SCORED: 0.0, "revised": 1.0}


def test_a_scorer_that_raises_is_no_failure_of_the_episode() -> None:
    judged = asked("prime_factorization").judge("none of them")
    assert (judged.score, judged.reason) == (0.0, NOT_SCORED)


def test_a_solver_alone_has_no_team() -> None:
    episode = family_of(ReasoningGym()).make(5, False, random.Random(0))
    (ask,) = episode.asks()
    assert [message.role for message in ask.messages] == ["user"]
    assert ask.messages[0].content.endswith("\n\nAnswer with only the answer.")
    episode.act([Reply("solver", episode.describe()["facts"]["answer"])])
    assert episode.asks() == []
    assert (episode.outcome().scores, episode.outcome().solved) == ({"solver": 1.0}, True)


EXPRESSION = "[open({path!r}, 'w').write('x')]"
FORMULA = "().__class__.__base__.__subclasses__() and open({path!r}, 'w').write('x')"


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        *((name, EXPRESSION) for name in ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")),
        *((name, FORMULA) for name in ("countdown", "puzzle24", "simple_integration", "polynomial_multiplication")),
    ],
)
def test_what_a_model_wrote_is_not_run(dataset: str, said: str, tmp_path: Path) -> None:
    marker = tmp_path / "written"
    with warnings.catch_warnings(action="ignore"):
        assert asked(dataset).judge(said.format(path=str(marker))).score < 0.1
    assert not marker.exists()


def test_a_list_is_still_read_as_one() -> None:
    question = asked("string_insertion")
    assert question.judge(str(list(question._row["answer"]))).score == 0.1


def test_options_of_every_type_come_from_json() -> None:
    dates = configured("time_intervals", {"min_date": "2001-02-03", "min_time": "04:05"}, "")
    assert (dates["min_date"].year, dates["min_time"].hour) == (2001, 4)
    assert configured("word_sorting", {"transformation": "uppercase"}, "")["transformation"].value == "uppercase"
    assert configured("rearc", {"board_format_opts": {"alphabet": list("abcdefghij")}}, "")["board_format_opts"]
    assert configured("countdown", {"operators": ["+", "-"]}, "") == {"operators": ("+", "-")}
    (gcd, dated) = configured("composite", PARTS, "")["datasets"]
    assert (gcd.config, dated.config["max_date"].month) == ({"max_value": 20}, 3)
    with pytest.raises(UnusableGenerator, match="is not a generator"):
        configured("composite", {"datasets": [{"name": "gcds", "weight": 1, "config": {}}]}, "")


def test_another_generator_does_not_keep_the_options_of_the_templates() -> None:
    changed = resolve({"environment": {"dataset": "gcd"}}, template="chat_gym").spec.environment
    same = resolve({"environment": {"seed": 5}}, template="chat_gym").spec.environment
    assert isinstance(changed, ReasoningGym)
    assert isinstance(same, ReasoningGym)
    assert changed.config == {}
    assert same.config != {}
