"""Charts of real runs draw simulated ones: the same phases, the same accounts, the same drawings."""

from typing import Any

import pytest

from flexmarl.controlplane.telemetry.simulated import device_timeline, load_series, stages
from flexmarl.simulator.cluster.loads import EVERY_S, Loads
from flexmarl.simulator.devices.trace import BUSY, TOLD
from flexmarl.simulator.reporting.report import report
from flexmarl.simulator.reporting.watching import RunWatch
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario
from webui.figures import composition, devices, flow, lanes, learning, load, matrix, pace
from webui.figures.base import Agent, SeriesSet

BATCH = {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 1}


@pytest.fixture(scope="module")
def drawn() -> tuple[RunWatch, dict[str, Any]]:
    faults = {"children": [{"at": 40, "device": 0}]}
    made = compose("hub", "flexmarl", {"faults": faults, "steps": 3, "warm_up": 0, "spec": {"batch": BATCH}})
    watch = RunWatch.over(alone(made))
    while len(watch.cluster.log.stepped) < 3:
        assert watch.cluster.clock.play()
    return watch, device_timeline.timeline(watch, 0.0, watch.cluster.log.stepped[2])


def test_every_phase_is_one_that_charts_know(drawn: tuple[RunWatch, dict[str, Any]]):
    assert set(TOLD) == (devices.BUSY | set(devices.TEXTURE)) - {"eval", "sync"}
    assert devices.BUSY - {"eval"} == BUSY
    phases = {phase for row in drawn[1]["devices"] for _, _, phase, _ in row["intervals"]}
    assert {"rollout", "load", "bind", "suspend", "resume", "train", "step"} <= phases <= TOLD
    assert all(policy for row in drawn[1]["devices"] for _, _, phase, policy in row["intervals"] if phase in BUSY)


def test_the_timeline_draws_every_device(drawn: tuple[RunWatch, dict[str, Any]]):
    watch, payload = drawn
    chart = devices.timeline(payload, {"coder": 3})
    [node] = chart.nodes
    assert [row.device for row in node.rows] == sorted(watch.cluster.pool.devices)
    assert all(row.blocks for row in node.rows)
    held = sum(row.held[0][1] for row in node.rows)
    assert held == pytest.approx(len(node.rows) * (devices.WIDTH - devices.LEFT - devices.RIGHT), rel=0.01)
    assert "12 devices" in composition.composition(payload).words


def test_the_bubble_is_that_of_the_report(drawn: tuple[RunWatch, dict[str, Any]]):
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


def tight() -> Scenario:
    """Engines with less room than is asked of them."""
    changes = {"steps": 2, "warm_up": 0, "machine": {"engine": {"slots": 2, "kv_tokens": 20_000}}}
    return compose("hub", "flexmarl", {**changes, "spec": {"batch": BATCH | {"tasks_per_step": 2}}})


@pytest.fixture(scope="module")
def sampled() -> Loads:
    loads = Loads.over(alone(tight()))
    while len(loads.cluster.log.stepped) < 2:
        assert loads.cluster.clock.play()
    return loads


def test_the_load_of_engines_is_drawn(sampled: Loads):
    until = sampled.cluster.log.stepped[1]
    roles = {name: [name] for name in ("planner", "coder", "searcher", "writer", "critic")}
    payload = load_series.load(sampled, roles, 0.0, until)
    assert len(payload["queues"]) >= until / payload["part_s"] - 6  # engines tell once they serve
    assert max(point["waiting"] for point in payload["queues"]) > 0  # two slots are too few
    assert 0.0 < max(point["cache_use"] for point in payload["queues"]) <= 1.0
    for sample in sampled.engines:
        assert sample.running <= sample.slots == 2
    at_engines: dict[float, int] = {}
    for sample in sampled.engines:
        at_engines[sample.at] = at_engines.get(sample.at, 0) + sample.running + sample.waiting
    in_flight = dict.fromkeys(at_engines, 0)
    for at, _, asked in sampled.asked:
        in_flight[at] = in_flight.get(at, 0) + asked.in_flight
    assert in_flight == at_engines  # what workers wait for is what engines have
    assert all(round(at / EVERY_S, 6).is_integer() for at in at_engines)
    for drawn in (load.demand(payload, {}), load.requests(payload), load.skew(payload)):
        assert drawn is not None
        assert all(line.pieces or line.dots for line in drawn.lines)


def test_looking_changes_nothing(sampled: Loads):
    other = alone(tight())
    while len(other.log.stepped) < 2:
        assert other.clock.play()
    assert other.log.stepped == sampled.cluster.log.stepped
    whole = tight().model_copy(update={"granularity": "episode"})
    with pytest.raises(ValueError, match="set granularity to turn"):
        Loads.over(alone(whole))


def test_the_charts_of_the_overview_draw_what_the_core_wrote(sampled: Loads):
    series = SeriesSet(load_series.series(sampled.cluster.log.metrics)["series"])
    agents = [Agent(name, name, name[:1].upper(), 1) for name in series.agents("reward/agent")]
    drawn = [
        learning.team_reward(series), learning.group_signal(series), pace.step_time(series),
        pace.staleness(series, agents, 0), pace.throughput(series, agents), pace.throughput(series, agents, "samples"),
    ]  # fmt: skip
    for figure in drawn:
        assert figure.table.rows, figure.name
        assert figure.data, figure.name
    for rows in (matrix.LEARNING, matrix.STABILITY):
        assert matrix.matrix(series, agents, rows)["rows"]


def test_the_pipeline_is_drawn(drawn: tuple[RunWatch, dict[str, Any]]):
    watch = drawn[0]
    spec = compose("hub", "flexmarl", {"spec": {"batch": BATCH}}).spec
    payload = stages.pipeline(watch, spec, 2)
    own = [[b for b in row["blocks"] if b["cohort"] == 1] for row in payload["policies"]]
    assert [len(blocks) for blocks in own] == [BATCH["tasks_per_step"]] * 5  # a group to a micro-batch
    for block in (b for blocks in own for b in blocks):
        assert block["groups"] == 1
        assert block["started"] < block["ready"] <= block["claimed"] < block["done"]
    assert all(row["publications"] for row in payload["policies"])
    assert (payload["passed"]["produced"], payload["passed"]["void"]) == (5 * BATCH["tasks_per_step"], 0)
    picture = lanes.draw(payload, {})
    assert all(lane.bars and lane.threads and lane.blocks for lane in picture.lanes)
    assert [one["lag"] for one in payload["staleness"]] == [0] * 5  # on-policy
    rows = sum(b["rows"] for blocks in own for b in blocks)
    assert sum(one["samples"] for one in payload["staleness"]) == rows
    assert flow.flow(payload["flow"], {}) is not None
    assert len(flow.trainer_bars(payload["trainer_time"])) == 5
    stale = flow.staleness_bars(payload["staleness"], payload["lag_bound"], {})
    assert stale is not None
    assert stale["beyond"] == 0
    assert len(lanes.strip(payload)) == 3
