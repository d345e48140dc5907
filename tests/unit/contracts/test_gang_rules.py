"""What several trainer ranks cannot share is refused at submit, each with a legal value."""

from typing import Any

import pytest

from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.experiment import ExperimentSpec

LORA = {"policies": {"speaker": {"devices": 2, "tuning": "lora"}, "listener": {}}}


def spec(**changes: Any) -> ExperimentSpec:
    own = {
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "policies": {"speaker": {"devices": 2}, "listener": {}},
        "resources": {"training_devices": 2},
    }
    return ExperimentSpec.model_validate({**own, **changes})


def codes(found: ExperimentSpec) -> set[str]:
    return {problem.code for problem in broken_rules(found) if problem.pointer == "/policies/speaker/devices"}


def test_what_the_transformers_trainer_cannot_do_is_refused() -> None:
    def broken(trainer: str, **changes: Any) -> dict[str, str]:
        policies = {"speaker": {"devices": 2, "trainer": trainer}, "listener": {}}
        problems = broken_rules(spec(policies=policies, **changes))
        return {problem.code: problem.hint for problem in problems if problem.pointer == "/policies/speaker/trainer"}

    ordered = {"mechanisms": {"ordered": True}}
    assert broken("transformers", **ordered) == {"not_with_ordered": "Set native, or ordered: false in /mechanisms."}
    assert not broken("native", **ordered)
    assert not broken("auto", **ordered)
    assert not broken("transformers"), "several devices share it like any other"


def test_a_policy_on_two_devices_is_legal() -> None:
    assert codes(spec()) == set()


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("too_many_devices", {"resources": {"training_devices": 1}}),
        ("not_with_lora", LORA),
        ("not_with_ordered", {"mechanisms": {"ordered": True}}),
        ("not_trained", {"agents": {"speaker": {"trainable": False}, "listener": {}}}),
        ("not_with_gae", {"algorithm": {"advantage": {"type": "gae"}}}),
        ("not_with_habc", {"algorithm": {"advantage": {"type": "habc"}}}),
        ("not_with_online_dpo", {"algorithm": {"loss": {"type": "online_dpo"}}}),
    ],
)
def test_what_ranks_cannot_share_is_refused(code: str, changes: dict[str, Any]) -> None:
    assert code in codes(spec(**changes))
