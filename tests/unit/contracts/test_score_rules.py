"""What scores cannot be is refused at submit by field, rule and legal value."""

from typing import Any

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.scores import SCORE

JUDGE = {"type": "judge"}
FROZEN = {"trainable": False, "external": {"url": "https://judge.example.org/v1", "model": "large"}}


def refused(scores: list[Any], agents: dict[str, Any] | None = None, **more: Any) -> list[tuple[str, str, str]]:
    given = {"environment": {"dataset": {"name": "x"}, "scores": scores}, "agents": {"solver": {}, **(agents or {})}}
    try:
        resolve({**given, **more}, template="chat_dataset")
    except SpecProblems as problems:
        return [(one.pointer, one.code, one.hint) for one in problems.problems]
    return []


@pytest.mark.parametrize(
    ("scores", "agents", "more", "problem"),
    [
        ([{"type": "code", "cpu_s": -1}], {}, {}, ("/environment/scores/0/cpu_s", "out_of_range")),
        (["exact", {"type": "math", "digits": 99}], {}, {}, ("/environment/scores/1/digits", "out_of_range")),
        ([{"type": "exact", "pays": ["x"]}], {}, {}, ("/environment/scores/0/pays", "invalid")),
        ([{**JUDGE, "agent": "solver"}], {}, {}, ("/environment/scores/0/agent", "invalid")),
        ([JUDGE], {}, {}, ("/agents", "missing_role")),
        ([JUDGE], {"judge": {}}, {}, ("/agents/judge/trainable", "judge_is_frozen")),
        (["code"], {}, {"mechanisms": {"ordered": True}}, ("/mechanisms/ordered", "not_with_this_score")),
        ([{**JUDGE, "width": 1}], {"judge": FROZEN}, {}, ("/environment/scores/0/width", "unknown_field")),
    ],
)
def test_a_score_that_cannot_be_is_refused_where_it_stands(
    scores: list[Any], agents: dict[str, Any], more: dict[str, Any], problem: tuple[str, str]
) -> None:
    found = refused(scores, agents, **more)
    assert problem in [one[:2] for one in found], found


def test_a_judge_is_a_role_of_the_environment_that_has_no_score() -> None:
    assert refused([JUDGE], {"judge": FROZEN}) == []


def test_only_programs_and_judges_may_differ() -> None:
    loose = {name for name, options in SCORE.variants().items() if not options.deterministic}
    assert loose == {"code", "judge"}
    assert "/mechanisms/ordered" not in [one[0] for one in refused(["math"], mechanisms={"ordered": True})]
