"""Runs that share a pool: who gets devices when, by the arbiter of real runs."""

from typing import Any

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.pool import arbiter
from flexmarl.simulator import PoolReport, SimulationError, simulate_pool
from flexmarl.simulator.sharing import Sharer, read_pools, starved

WORKLOAD = {
    "spec": {
        "agents": {"solver": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 1, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1},
        "resources": {"rollout_devices": 2},
    },
    "workload": {"stages": [["solver"]], "each": {"prompt": 0, "reply": 1000}},
    "steps": 2,
    "warm_up": 0,
}
"""Three devices; about half a minute per step."""


def run(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "workload": WORKLOAD, "preset": "sync"} | more


def play(devices: int, *runs: dict[str, Any], **more: Any) -> PoolReport:
    report = simulate_pool(read_pools({"devices": {"default": devices}, "runs": list(runs)} | more))
    held = [own for _, own in report.held.values()]
    for one in held:
        for other in held:
            apart = one.until <= other.since or other.until <= one.since
            assert one is other or one.device_id != other.device_id or apart, "a device has one run at a time"
    return report


def fates(report: PoolReport) -> dict[str, Sharer]:
    return {run.name: run for run in report.runs}


def test_runs_that_fit_beside_each_other_do_not_wait():
    report = play(6, run("one"), run("two"))
    one, two = report.runs
    assert one.wait_s == two.wait_s == pytest.approx(0.0, abs=0.1)
    assert (one.status, one.says) == (RunStatus.COMPLETED, "all 2 train steps are done")
    assert one.step_s == pytest.approx(two.step_s or 0.0)
    assert report.leased > 0.99


def test_a_gang_waits_until_all_of_it_is_free():
    """Five devices: two are left beside the first run, and the second needs three."""
    report = fates(play(5, run("one"), run("two")))
    assert report["one"].ended is not None
    assert report["two"].granted == pytest.approx(report["one"].ended, abs=0.1)


def test_priority_decides_then_the_share_of_the_project_then_age():
    late = [run("first"), run("low", at=1), run("high", at=2, priority=90)]
    found = fates(play(3, *late))
    assert (found["high"].granted or 0.0) < (found["low"].granted or 0.0)
    rich = [run("a1", project="a"), run("a2", project="a", at=1), run("b1", project="b", at=2)]
    found = fates(play(3, *rich))
    assert (found["a2"].granted or 0.0) < (found["b1"].granted or 0.0), "nobody holds anything when the first ends"
    found = fates(play(6, run("a0", project="a", workload=WORKLOAD | {"steps": 6}), *rich))
    assert (found["b1"].granted or 0.0) < (found["a2"].granted or 0.0), "project a holds half of the pool then"


def test_a_quota_keeps_devices_free_for_others():
    both = [run("a1", project="a"), run("a2", project="a"), run("b1", project="b", at=1)]
    quotas = [{"project": "a", "devices": 5}]
    found = fates(play(6, *both, quotas=quotas))
    assert found["b1"].wait_s == pytest.approx(0.0, abs=0.1)
    assert found["a2"].granted == pytest.approx(found["a1"].ended, abs=0.1)


def test_a_run_that_is_too_large_waits_and_says_why():
    large = WORKLOAD | {"spec": WORKLOAD["spec"] | {"resources": {"rollout_devices": 9}}}
    found = fates(play(4, run("large", workload=large), run("small")))
    assert found["small"].status is RunStatus.COMPLETED
    assert found["large"].wait_s is None
    assert found["large"].says == "Needs 10 devices in default, 4 are healthy: add a node, or request fewer"
    with pytest.raises(SimulationError, match="No run completed a step: Needs 10 devices in default"):
        play(4, run("large", workload=large))


def test_a_run_that_starves_is_found_by_name(monkeypatch: pytest.MonkeyPatch):
    """Runs of higher priority keep coming, each for most of an hour; patience is four hours."""
    slow = WORKLOAD | {"machine": {"engine": {"token": 1.5}}}
    urgent = [run(f"urgent{i}", at=i * 2500.0, priority=90, workload=slow) for i in range(9)]
    low = run("low", at=1, workload=slow)
    whole = play(3, *urgent, low)
    assert starved(whole) == []
    assert 4 * 3600 <= (fates(whole)["low"].wait_s or 0.0) < 4 * 3600 + 4600, "patience, and the run before it"
    monkeypatch.setattr(arbiter, "PATIENCE_S", float("inf"))
    [finding] = starved(play(3, *urgent, low))
    assert finding.name == "starvation"
    assert finding.evidence.startswith("low waits for devices since 1 s; after 14400 s of that urgent")


def test_equal_files_give_equal_results():
    runs = [run("one", at=3), run("two")]
    assert play(4, *runs) == play(4, *runs)


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"runs": {}}, "/runs"),
        ({"devices": {"default": 3}, "runs": [run("one"), run("one")]}, "/runs"),
        ({"devices": {"default": 3}, "runs": [run("one", preset="snc")]}, "/runs/0/preset"),
        ({"devices": {"default": 3}, "runs": [run("one", at=-1)]}, "/runs/0/at"),
        ({"devices": {"default": 3}, "runs": [run("a", changes={"faults": {"spares": 1}})]}, "/runs/0/scenario/faults"),
        ({"devices": {"default": 3}, "runs": [run("one", changes={"steps": 0})]}, "/runs/0/steps"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_field(document: dict[str, Any], pointer: str):
    with pytest.raises(SpecProblems) as refused:
        read_pools(document)
    assert pointer in [problem.pointer for problem in refused.value.problems]
