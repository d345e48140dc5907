"""Scores of replies to rows of datasets: pure, bounded, and safe against what users write as patterns and schemas."""

import time
from typing import Any

import pytest
from pydantic import ValidationError

from flexmarl.algorithms.scores import MOST_CHARACTERS, SCORES, RowScorer, ScorePart
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.scores import SCORE
from flexmarl.language.dataset_rows import DatasetRow
from flexmarl.language.messages import Message

SECONDS = 1.0
"""Far above what a linear engine takes, far below what backtracking would."""


def scores(*given: dict[str, Any]) -> RowScorer:
    return RowScorer(DatasetTasks.model_validate({"scores": list(given)}).scores)


def score(answer: str, reply: str, kind: str, **options: Any) -> float:
    scorer = scores({"type": kind, **options})
    return scorer.worth(scorer.parts(DatasetRow((Message("user", "?"),), answer), reply))


@pytest.mark.parametrize(
    ("kind", "options", "answer", "reply", "worth"),
    [
        ("exact", {}, "Paris", "  paris.\n", 1.0),
        ("exact", {}, "Paris", "It is Paris", 0.0),
        ("exact", {"case": True}, "Paris", "paris", 0.0),
        ("exact", {}, "ﬁve", "five", 1.0),
        ("exact", {"read": "last_line"}, "42", "I think\n42\n", 1.0),
        ("exact", {"read": "tag"}, "42", "<answer>1</answer> no <answer> 42 </answer>", 1.0),
        ("exact", {"read": "tag"}, "42", "42", 0.0),
        ("exact", {"read": "boxed"}, "\\frac{1}{2}", "so \\boxed{\\frac{1}{2}}", 1.0),
        ("exact", {"read": "boxed"}, "1", "so \\boxed{1", 0.0),
        ("contains", {}, "new york", "I like New  York best", 1.0),
        ("contains", {}, "", "anything", 0.0),
        ("regex", {"pattern": "(?i)is {answer}$"}, "a+b", "It IS a+b", 1.0),
        ("regex", {"pattern": "(?i)is {answer}$"}, "a+b", "It is aab", 0.0),
        ("number", {}, "#### 1,234.5", "about 7, no: 1234.50", 1.0),
        ("number", {}, "3", "3 or 4", 0.0),
        ("number", {"tolerance": 0.01}, "3.14", "3.15", 1.0),
        ("number", {}, "0.3", "0.30000000000000004", 1.0),
        ("number", {}, "none", "4", 0.0),
        ("multiple_choice", {}, "(B)", "Between A and B: B.", 1.0),
        ("multiple_choice", {}, "B", "Because", 0.0),
        ("multiple_choice", {"letters": "AB"}, "B", "B, not C", 1.0),
        ("json_schema", {"accepts": {"type": "object", "required": ["a"]}}, "", '{"a": 1}', 1.0),
        ("json_schema", {"accepts": {"type": "object", "required": ["a"]}}, "", '{"b": 1}', 0.0),
        ("json_schema", {"accepts": {}}, "", "no json", 0.0),
        ("json_schema", {"accepts": {}}, "", "[" * 10_000, 0.0),
        ("json_schema", {"accepts": {}}, "", "[" * 100 + "]" * 100, 0.0),
        ("length", {"budget": 4, "limit": 8}, "", "abcd", 1.0),
        ("length", {"budget": 4, "limit": 8}, "", "abcdef", 0.5),
        ("length", {"budget": 4, "limit": 8}, "", "abcdefghijk", 0.0),
        ("format", {"tag": "think"}, "", "<think>x</think> y", 1.0),
        ("format", {"tag": "think"}, "", "</think><think>", 0.0),
        ("format", {}, "", "<answer>1</answer><answer>2</answer>", 0.0),
    ],
)
def test_a_reply_is_worth(kind: str, options: dict[str, Any], answer: str, reply: str, worth: float) -> None:
    assert score(answer, reply, kind, **options) == worth


def test_parts_are_weighted_and_named() -> None:
    scorer = scores({"type": "number"}, {"type": "length", "name": "short", "weight": 3, "budget": 1, "limit": 3})
    parts = scorer.parts(DatasetRow((Message("user", "?"),), "4"), "44")
    assert {name: part.value for name, part in parts.items()} == {"number": 0.0, "short": 0.5}
    assert scorer.worth(parts) == 0.375


def test_each_seat_and_the_team_have_weights_of_their_own() -> None:
    given = [
        {"type": "number", "pays": "team"},
        {"type": "length", "budget": 1, "limit": 3, "pays": ["solver"]},
        {"type": "format", "weight": 3, "pays": "seats"},
    ]
    graph = {"type": "sequence", "order": ["solver", "reviser"]}
    scorer = RowScorer(DatasetTasks.model_validate({"scores": given, "graph": graph}).scores)
    parts = scorer.parts(DatasetRow((Message("user", "?"),), "4"), "44")
    assert [scorer.worth(parts, seat) for seat in (None, "solver", "reviser")] == [0.0, 0.125, 0.0]
    assert scorer.worth({"format": ScorePart(1.0)}, "solver") == 1.0, "what is missing has no weight"
    assert not RowScorer([given_to("team")]).pays("solver")


def given_to(whom: str) -> Any:
    return DatasetTasks.model_validate({"scores": [{"type": "exact", "pays": whom}]}).scores[0]


def test_so_much_of_a_reply_is_read() -> None:
    assert score("42", "x" * (MOST_CHARACTERS - 2) + "42", "contains") == 1.0
    assert score("42", "x" * MOST_CHARACTERS + "42", "contains") == 0.0


def test_every_score_takes_any_reply_and_stays_between_0_and_1() -> None:
    here = [name for name, options in SCORE.variants().items() if options.computed == "here"]
    assert SCORES.names() == tuple(here)
    scorer = scores(*({"type": name} for name in here))
    for reply in ("", "\x00", "\ud800", "A" * (MOST_CHARACTERS + 1), "1e999", "-", "{", "\\boxed{", "9" * 5000):
        parts = scorer.parts(DatasetRow((Message("user", "?"),), reply[:50]), reply)
        assert not any(part.broken for part in parts.values()), (reply[:20], parts)
        assert all(0.0 <= part.value <= 1.0 for part in parts.values())


@pytest.mark.parametrize(
    ("options", "reply"),
    [
        ({"type": "regex", "pattern": "(a+)+$"}, "a" * 19_000 + "b"),
        ({"type": "regex", "pattern": "(a|a|a)*b"}, "a" * 19_000),
        ({"type": "json_schema", "accepts": {"pattern": "^(a+)+$"}}, '"' + "a" * 19_000 + 'b"'),
        (
            {
                "type": "json_schema",
                "accepts": {"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False},
            },
            '{"' + "a" * 5000 + 'b": 1}',
        ),
        ({"type": "json_schema", "accepts": {"uniqueItems": True}}, f"[{','.join(f'[{n}]' for n in range(2500))}]"),
    ],
)
def test_no_pattern_or_schema_takes_long(options: dict[str, Any], reply: str) -> None:
    scorer = scores(options)
    began = time.perf_counter()
    scorer.parts(DatasetRow((Message("user", "?"),)), reply)
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"type": "regex", "pattern": "(a"}, "unclosed group"),
        ({"type": "regex", "pattern": r"(a)\1"}, "back references"),
        ({"type": "regex", "pattern": "(?=a)"}, "look-around"),
        ({"type": "json_schema", "accepts": {"type": "objekt"}}, "objekt"),
        ({"type": "json_schema", "accepts": {"anyOf": [{"$ref": "#"}]}}, "$ref is not allowed"),
        ({"type": "length", "budget": 5, "limit": 5}, "set at least 6"),
        ({"type": "exact", "weight": 0}, "greater than 0"),
        ({"type": "opinion"}, "opinion"),
        ({"type": "exact", "pays": ["nobody"]}, "no seat is named nobody"),
        ({"type": "exact", "pays": []}, "it pays nobody"),
        ({"type": "exact", "pays": "seats"}, "no score pays the team"),
        ({"type": "judge", "agent": "solver"}, "solver has a seat"),
        ({"type": "judge", "lowest": 3, "highest": 3}, "not above lowest"),
        ({"type": "code", "cpu_s": 30, "wall_s": 20}, "set at least 30"),
    ],
)
def test_scores_that_cannot_be_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        scores(given)
    assert said in str(refused.value)


def test_two_scores_have_two_names() -> None:
    with pytest.raises(ValidationError, match="two scores are named exact"):
        scores({"type": "exact"}, {"type": "exact", "read": "tag"})
    scores({"type": "exact"}, {"type": "exact", "read": "tag", "name": "tagged"})
    with pytest.raises(ValidationError, match="there is no score"):
        scores()
