"""An ordered run under random kills ends in the very weights of an undisturbed one."""

import os
from collections.abc import Callable

import pytest

from tests.chaos.test_random_kills import SPEC, assert_nothing_lost_or_repeated, strike_run
from tests.support.bits import bits_of
from tests.support.chaos import patient
from tests.support.system import System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.full, pytest.mark.timeout(1500)]

KILLS = 30
SEED = int(os.environ.get("FLEXMARL_CHAOS_SEED", "20"))
STEPS = 160
"""As many as a quick machine makes while it recovers from the kills."""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.mark.parametrize("lag", [0, 1])
def test_random_kills_do_not_change_a_bit_of_an_ordered_run(system: System, lag: int) -> None:
    api, delayed = system.api(), {"publication": "delayed", "lag_policy": {"bound": 1}}
    spec = {
        **SPEC,
        "seed": 11,
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": STEPS, "tasks": 16},
        "mechanisms": {"ordered": True, **(delayed if lag else {})},
    }
    ended = []
    for name in ("undisturbed", "struck"):
        run_id = api.create_run(name=name, spec=spec)["id"]
        run = api.wait(run_id, lambda run: run["step"] >= 2, 300)
        if name == "struck":
            strikes, _ = strike_run(system, run["no"], STEPS, KILLS, SEED, slow=2.0, apart=0.5)
            kills = sum(len(strike.kinds) for strike in strikes)
            print(f"{kills} kills, up to step {strikes[-1].back_step} of {STEPS}")
            assert kills > KILLS / 2
        run = patient(lambda run_id=run_id: api.finish(run_id, 600))
        assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
        assert_nothing_lost_or_repeated(system, api, run)
        ended.append(bits_of(system.database_url, run["no"]))
    assert ended[0].weights == ended[1].weights
    assert ended[0].states == ended[1].states
    assert ended[0].samples == ended[1].samples
