"""Pairs seen from past policies, and weighted imitation, through the real services: a kill changes no bit.

Ordered runs are compared: one whose driver and trainer are killed in the third round, where training states are kept of
every second version, ends in the weights and training states of an undisturbed one.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.bits import bits_of
from tests.support.chaos import patient
from tests.support.promised import kept_its_promises
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

STEPS = 8
STRUCK_AT = 5
MNPO = {
    "loss": {"type": "online_dpo", "form": "mnpo", "round_steps": 2},
    "advantage": {"type": "best_worst"},
    "entropy": {"start": 0.0},
}
HABC = {"advantage": {"type": "habc", "warmup_steps": 2}}


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def spec(algorithm: dict[str, Any]) -> dict[str, Any]:
    return {
        "seed": 7,
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
        "algorithm": algorithm,
        "mechanisms": {"ordered": True, "durability": {"type": "every_k", "every": 2}},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
        "checkpoints": {"every_steps": 100},
    }


def _far_enough(run: dict[str, Any]) -> bool:
    return bool(run["step"] >= STRUCK_AT)


@pytest.mark.parametrize("algorithm", [MNPO, HABC], ids=["mnpo", "habc"])
def test_a_run_whose_trainer_is_killed_ends_in_the_same_bits(system: System, algorithm: dict[str, Any]) -> None:
    api, bits = system.api(), {}
    for name in ("quiet", "struck"):
        run_id = api.create_run(name=name, template="hot_cold", spec=spec(algorithm))["id"]
        if name == "struck":
            patient(lambda run_id=run_id: api.wait(run_id, _far_enough, 300))
            system.kill("driver")
            system.kill("device-worker")
        run = patient(lambda run_id=run_id: api.finish(run_id, 400))
        assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
        kept_its_promises(system, run["no"])
        found = bits_of(system.database_url, run["no"])
        bits[name] = (found.samples, found.sums, found.weights)
    assert bits["quiet"] == bits["struck"]
