"""Which versions are durable is one word, or one word and a number that fits it."""

import pytest

from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification import ExperimentSpec


def spec_of(durability):
    return ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {}, "listener": {}},
            "environment": {"type": "reference_game"},
            "mechanisms": {"durability": durability},
        }
    )


@pytest.mark.parametrize("durability", ["every_step", "async", {"type": "every_k", "every": 2}])
def test_a_word_or_a_word_with_its_number_is_legal(durability):
    assert broken_rules(spec_of(durability)) == []


@pytest.mark.parametrize(
    ("durability", "hint"),
    [
        ("every_k", "Set 2 or more"),
        ({"type": "async", "every": 3}, "Set 1"),
        ({"type": "every_step", "every": 2}, "Set 1"),
    ],
)
def test_a_number_that_contradicts_its_word_is_refused_with_a_legal_one(durability, hint):
    [problem] = broken_rules(spec_of(durability))
    assert (problem.pointer, problem.code) == ("/mechanisms/durability/every", "out_of_range")
    assert problem.hint.startswith(hint)
