"""When new weights serve and what of them is sent: one word, as ever, or both words."""

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve

TEAM = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("cohort", {"type": "cohort", "content": "auto"}),
        ("wavefront", {"type": "wavefront", "content": "auto"}),
        ({"content": "full"}, {"type": "cohort", "content": "full"}),
        ({"type": "wavefront", "content": "delta"}, {"type": "wavefront", "content": "delta"}),
    ],
)
def test_a_word_is_when_and_the_other_is_what(said: object, meant: dict[str, str]):
    found = resolve({**TEAM, "mechanisms": {"publication": said}}).document
    assert found["mechanisms"]["publication"] == meant


def test_what_is_sent_does_not_change_when_a_preset_serves():
    found = resolve({**TEAM, "mechanisms": {"publication": {"content": "full"}}}, preset="wavefront").document
    assert found["mechanisms"]["publication"] == {"type": "wavefront", "content": "full"}


def test_another_word_is_refused_with_the_legal_ones():
    with pytest.raises(SpecProblems) as refused:
        resolve({**TEAM, "mechanisms": {"publication": {"content": "sparse"}}})
    [problem] = refused.value.problems
    assert problem.pointer == "/mechanisms/publication/content"
    assert all(word in problem.hint + problem.detail for word in ("auto", "full", "delta"))
