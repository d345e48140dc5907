"""Charts of real runs draw simulated ones: the same phases, the same accounts, the same drawings."""

from typing import Any

import pytest

from flexmarl.controlplane.telemetry import simulated
from flexmarl.simulator.library import compose
from flexmarl.simulator.report import report
from flexmarl.simulator.runs import alone
from flexmarl.simulator.trace import BUSY, TOLD
from flexmarl.simulator.watching import Watch
from webui.figures import composition, devices

BATCH = {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 1}


@pytest.fixture(scope="module")
def drawn() -> tuple[Watch, dict[str, Any]]:
    faults = {"children": [{"at": 40, "device": 0}]}
    made = compose("hub", "flexmarl", {"faults": faults, "steps": 3, "warm_up": 0, "spec": {"batch": BATCH}})
    watch = Watch.over(alone(made))
    while len(watch.cluster.log.stepped) < 3:
        assert watch.cluster.clock.play()
    return watch, simulated.timeline(watch, 0.0, watch.cluster.log.stepped[2])


def test_every_phase_is_one_that_charts_know(drawn: tuple[Watch, dict[str, Any]]):
    assert set(TOLD) == (devices.BUSY | set(devices.TEXTURE)) - {"eval", "sync"}
    assert devices.BUSY - {"eval"} == BUSY
    phases = {phase for row in drawn[1]["devices"] for _, _, phase, _ in row["intervals"]}
    assert {"rollout", "load", "bind", "suspend", "resume", "train", "step"} <= phases <= TOLD
    assert all(policy for row in drawn[1]["devices"] for _, _, phase, policy in row["intervals"] if phase in BUSY)


def test_the_timeline_draws_every_device(drawn: tuple[Watch, dict[str, Any]]):
    watch, payload = drawn
    chart = devices.timeline(payload, {"coder": 3})
    [node] = chart.nodes
    assert [row.device for row in node.rows] == sorted(watch.cluster.pool.devices)
    assert all(row.blocks for row in node.rows)
    held = sum(row.held[0][1] for row in node.rows)
    assert held == pytest.approx(len(node.rows) * (devices.WIDTH - devices.LEFT - devices.RIGHT), rel=0.01)
    assert "12 devices" in composition.composition(payload).words


def test_the_bubble_is_that_of_the_report(drawn: tuple[Watch, dict[str, Any]]):
    watch, payload = drawn
    account = payload["bubble"]
    assert account["held_s"] == pytest.approx(
        account["busy_s"] + sum(one["seconds"] for one in account["causes"]), abs=0.1
    )
    assert {"tail", "starting", "samples"} <= {one["cause"] for one in account["causes"]}
    made = compose("hub", "flexmarl", {"steps": 3, "warm_up": 0})
    told = report(made, watch.cluster)
    worked = {"engine": 0.0, "trainer": 0.0}
    for one in told.intervals:
        worked[told.uses[one.lease_id]] += (one.ended - one.began) * (one.kind in BUSY)
    busy = {
        use: seconds / sum(h.use == use for h in told.held.values()) / told.ended for use, seconds in worked.items()
    }
    assert told.busy == pytest.approx(busy, rel=0.01)
    tokens = sum(row["tokens"] for row in payload["agents"])
    assert tokens == pytest.approx(watch.cluster.hosting.made(), rel=0.02)
