"""Ordered runs through the whole system end in the same bits, however their work was scheduled.

That kills do not change them either: tests/chaos/test_ordered_kills.py and test_durability.py.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.bits import Bits, bits_of, further_rollout_worker
from tests.support.system import Api, System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(1500)]

STEPS = 4
TEMPLATE = "hot_cold"
"""A team of two whose episodes have several turns and different lengths, so that batches in the engine do vary."""


DELAYED = {"publication": "delayed", "lag_policy": {"bound": 1}}
"""Each cohort plays while the one before it is trained."""


def overrides(*, ordered: bool, rollout_groups: int, waits: bool, mechanisms: dict[str, Any] | None = None) -> dict:
    waiting = {"environment": {"latency": {"scale_s": 0.01, "sigma": 1.0, "cap_s": 0.2}}} if waits else {}
    return {
        "seed": 7,
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 2, "tasks": 16},
        "batch": {
            "tasks_per_step": 12,
            "episodes_per_task": 4,
            "micro_batch_groups": 3,
            "rollout_groups": rollout_groups,
        },
        "mechanisms": {"ordered": ordered, **(mechanisms or {})},
        **waiting,
    }


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def api(system: System) -> Api:
    return system.api()


def begin(api: Api, name: str, *, rollout_groups: int = 12, waits: bool = False, **more: Any) -> str:
    spec = overrides(rollout_groups=rollout_groups, waits=waits, **{"ordered": True, **more})
    return api.create_run(name=name, template=TEMPLATE, spec=spec)["id"]


def ended(system: System, api: Api, run_id: str) -> Bits:
    run = api.finish(run_id, 240)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    return bits_of(system.database_url, run["no"])


@pytest.fixture(scope="module")
def expected(system: System, api: Api) -> Bits:
    """The bits of an undisturbed run, which plays each cohort with one command."""
    return ended(system, api, begin(api, "undisturbed"))


def assert_same(found: Bits, expected: Bits) -> None:
    """Compare from cause to effect, so that the first difference is named."""
    assert found.samples.keys() == expected.samples.keys()
    for version in range(STEPS):
        ours, theirs = (
            {key: digest for key, (digest, made_by) in bits.samples.items() if made_by == version}
            for bits in (found, expected)
        )
        assert ours == theirs, f"samples of version {version}"
    assert found.sums == expected.sums
    assert found.weights == expected.weights
    assert found.states == expected.states
    assert len(set(expected.weights.values())) == len(expected.weights), "every step moved the weights"


def test_another_schedule_and_a_second_worker_end_in_the_same_bits(
    system: System, api: Api, expected: Bits, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Groups one by one, with waits that shuffle their arrival, over two workers, beside another run."""
    with further_rollout_worker(system, tmp_path_factory.mktemp("worker") / "out"):
        found = ended(system, api, begin(api, "shuffled", rollout_groups=1, waits=True))
    assert_same(found, expected)


def test_a_lag_of_one_ends_in_the_same_bits_also_where_cohorts_could_not_overlap(
    system: System, api: Api, expected: Bits, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The second run is shuffled, and paused in the middle: its next cohort starts when newer weights are served."""
    undisturbed = ended(system, api, begin(api, "delayed", mechanisms=DELAYED))
    with further_rollout_worker(system, tmp_path_factory.mktemp("worker") / "out"):
        run_id = begin(api, "delayed and paused", rollout_groups=1, waits=True, mechanisms=DELAYED)
        api.wait(run_id, lambda run: run["step"] >= 1, 120)
        api.act(run_id, "pause")
        api.wait(run_id, lambda run: run["status"] == "paused", 120)
        api.act(run_id, "resume")
        found = ended(system, api, run_id)
    assert_same(found, undisturbed)
    made_by = {key[0]: version for key, (_, version) in undisturbed.samples.items()}
    each = len(made_by) // STEPS
    assert [made_by[draw] for draw in sorted(made_by)] == [max(no // each - 1, 0) for no in range(len(made_by))]
    assert undisturbed.weights != expected.weights, "it is another algorithm"


@pytest.mark.full
def test_a_run_that_is_not_ordered_promises_less(system: System, api: Api, expected: Bits) -> None:
    """Shows that the comparison can fail: sums by arrival and batches by chance end in other bits."""
    found = ended(system, api, begin(api, "not ordered", ordered=False, rollout_groups=1, waits=True))
    assert found.weights != expected.weights
