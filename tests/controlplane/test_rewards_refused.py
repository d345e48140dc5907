"""A reward function must be installed where a run is submitted."""

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.controlplane.experiments.plans import Draft, plan, resolve_draft

pytestmark = pytest.mark.django_db


def draft(reward: dict) -> Draft:
    return Draft(
        spec={"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}, "reward": reward}
    )


def test_a_function_that_is_not_installed_is_refused_before_anything_is_queued() -> None:
    with pytest.raises(SpecProblems) as refused:
        resolve_draft(draft({"type": "function", "name": "judge"}))
    (problem,) = refused.value.problems
    assert (problem.pointer, problem.code) == ("/reward/name", "unknown_value")
    assert [one["pointer"] for one in plan(draft({"type": "function", "name": "judge"}))["errors"]] == ["/reward/name"]
    assert resolve_draft(draft({"type": "brevity"})).spec.reward.type == "brevity"
