"""Episodes are given up only for what the cut would remove: anything else is refused with a way out."""

from typing import Any

import pytest

from flexmarl.contracts.rules import broken_rules
from tests.unit.orchestrator.fake_cluster import make_spec

GIVING_UP = {"bound": 1, "at_cut": "drop", "at_turn": "abandon"}
POINTER = "/mechanisms/lag_policy/at_turn"


def refused(lag: dict[str, Any], **changes: Any) -> list[tuple[str, str]]:
    found = broken_rules(make_spec(mechanisms__lag_policy=lag, **changes))
    assert all(one.hint for one in found)
    return [(one.pointer, one.code) for one in found]


@pytest.mark.parametrize("at_cut", ["drop", "refresh"])
def test_what_the_cut_removes_may_be_given_up_before(at_cut: str) -> None:
    assert refused(GIVING_UP | {"at_cut": at_cut}) == []
    assert refused(GIVING_UP | {"at_turn": "play", "at_cut": "wait"}) == []


@pytest.mark.parametrize("at_cut", ["wait", "train"])
def test_what_is_waited_for_or_trained_anyway_may_not(at_cut: str) -> None:
    assert (POINTER, "needs_sweep") in refused(GIVING_UP | {"at_cut": at_cut})


def test_every_trained_policy_has_to_agree() -> None:
    own = {"speaker": {"lag_policy": {"bound": 1, "at_cut": "drop"}}}
    assert refused(GIVING_UP, policies=own) == [(POINTER, "needs_every_policy")]
    other = {"speaker": {"lag_policy": {"bound": 3, "at_cut": "refresh", "at_turn": "abandon"}}}
    assert refused(GIVING_UP, policies=other) == []
    spec = make_spec(mechanisms__lag_policy=GIVING_UP, policies=other)
    assert spec.abandon_bounds() == {"speaker": 3, "listener": 1}
    assert make_spec(mechanisms__lag_policy=GIVING_UP, policies=own).abandon_bounds() == {}


def test_a_frozen_policy_is_not_asked() -> None:
    agents = {"speaker": {"trainable": False}, "listener": {}}
    spec = make_spec(mechanisms__lag_policy=GIVING_UP, agents=agents)
    assert spec.abandon_bounds() == {"listener": 1}


def test_an_episode_that_was_given_up_earns_no_score() -> None:
    assert refused(GIVING_UP, batch__incomplete_group="score", batch__min_members=2) == [
        (POINTER, "not_with_scored_failures")
    ]


@pytest.mark.parametrize("controller", ["at_grpo_tree", "trace"])
def test_members_that_share_one_episode_are_not_given_up_one_by_one(controller: str) -> None:
    found = refused(
        GIVING_UP,
        sampling__branch_controller=controller,
        algorithm__group_key="agent_turn",
        batch={"episodes_per_task": 8, "tasks_per_step": 6, "micro_batch_groups": 2},
    )
    assert (POINTER, "not_with_branches") in found
