"""What sharing cannot be combined with: each refusal names the field, and following it gives a legal specification."""

from typing import Any

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve

DOCUMENT: dict[str, Any] = {
    "agents": {"guesser": {}, "hinter": {}},
    "environment": {"type": "hot_cold"},
    "batch": {"episodes_per_task": 8},
    "sampling": {"sharing": "exchange"},
}


def broken(**changes: Any) -> set[tuple[str, str]]:
    try:
        resolve({**DOCUMENT, **changes})
    except SpecProblems as refused:
        return {(one.pointer, one.code) for one in refused.problems}
    return set()


def test_the_plain_form_is_legal_and_nothing_is_shared_unless_asked() -> None:
    assert broken() == set()
    assert not resolve({**DOCUMENT, "sampling": {}}).spec.sampling.sharing.on
    assert resolve(DOCUMENT).spec.sampling.sharing.foreign == 4


@pytest.mark.parametrize(
    ("pointer", "changes"),
    [
        ("/environment/type", {"environment": {"type": "reference_game"}, "agents": {"speaker": {}, "listener": {}}}),
        ("/sampling/sharing/foreign", {"sampling": {"sharing": {"type": "exchange", "foreign": 5}}}),
        ("/sampling/replay/type", {"sampling": {"sharing": "exchange", "replay": "archive"}}),
        (
            "/sampling/task_sampler/type",
            {"sampling": {"sharing": "exchange", "task_sampler": {"type": "vade", "tasks": 64}}},
        ),
        ("/mechanisms/ordered", {"mechanisms": {"ordered": True}}),
        ("/mechanisms/trainer_protocol", {"mechanisms": {"trainer_protocol": "mini_batch"}}),
        ("/mechanisms/redundancy/type", {"mechanisms": {"redundancy": {"type": "extra_members", "extra": 2}}}),
        ("/algorithm/advantage/type", {"algorithm": {"advantage": "gae"}}),
        ("/algorithm/loss/type", {"algorithm": {"loss": "online_dpo"}}),
        ("/reward/type", {"reward": {"type": "brevity"}}),
    ],
)
def test_what_sharing_cannot_be_combined_with_is_refused_where_it_stands(pointer: str, changes: dict[str, Any]) -> None:
    assert (pointer, "not_with_sharing") in broken(**changes)
    without = {**changes, "sampling": {**changes.get("sampling", {}), "sharing": "none"}}
    assert not any(code == "not_with_sharing" for _, code in broken(**without))
