"""What goes wrong, against arithmetic that can be done by hand, and the core's way back from it."""

from typing import Any

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.problems import SpecProblems
from flexmarl.orchestrator import Decision
from flexmarl.simulator import SimulationError, SimulationReport, simulate
from flexmarl.simulator.cluster.hosting import RESTART_S
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenarios.faults import Faults
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario

BATCH = {"tasks_per_step": 1, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1}
DELAYS = {"report": 0.0, "decide": 0.0, "hop": 0.0, "pick_up": 0.0, "start": 5.0}
MACHINE = {
    "engine": {"token": 0.01, "batch": 1e9, "prefill": 1e12, "load": 2.0},
    "trainer": {"token": 0.01, "micro_batch": 0.0, "step": 1.0, "create": 5.0},
    "delays": DELAYS,
}
READY = 12.0
"""Start, making version 0, load."""


def told(
    spec: dict[str, Any] | None = None, preset: str = "sync", workload: dict[str, Any] | None = None, **faults: Any
) -> Scenario:
    """One policy; two episodes on two engines answer 1000 tokens in 10 s; both train in 20 s, step in 1 s."""
    written = {"agents": {"solver": {}}, "environment": {"type": "arithmetic"}, "batch": BATCH,
               "resources": {"rollout_devices": 2}} | (spec or {})  # fmt: skip
    load = {"stages": [["solver"]], "each": {"prompt": 0, "reply": 1000}} | (workload or {})
    rest = {"machine": MACHINE, "faults": faults, "steps": 2, "warm_up": 0}
    return compose({"spec": written, "workload": load} | rest, preset)


def played(**given: Any) -> SimulationReport:
    return simulate(told(**given))


def ends(report: SimulationReport) -> list[float]:
    """Return when each step was done."""
    return [round(report.began + sum(report.steps[: i + 1]), 3) for i in range(len(report.steps))]


def test_without_a_fault_a_step_takes_its_parts():
    report = played()
    assert ends(report) == [READY + 31, READY + 31 + 2 + 31]
    assert (report.lost_s, report.recovery_s, report.redone_tokens, report.replayed_tokens) == (0, 0, 0, 0)
    assert not report.losses


def test_replies_of_a_lost_engine_go_on_elsewhere_with_the_tokens_they_have():
    report = played(children=[{"at": READY + 4, "device": 0}])
    assert ends(report)[0] == pytest.approx(READY + 31), "the other engine has room: nothing is made twice"
    first = next((i.began, i.ended) for i in report.intervals if i.kind == "rollout" and i.lease_id == 1)
    assert first == pytest.approx((READY, READY + 4)), "nothing is made where nobody lives"
    [loss] = report.losses
    assert (loss.cause, loss.use, loss.at) == ("child", e.DeviceUse.ENGINE, READY + 4)
    assert loss.back == pytest.approx(READY + 4 + RESTART_S + 5 + 2), "its child starts, then loads"
    assert report.recovery_s == report.lost_s == pytest.approx(RESTART_S + 7)


def test_a_lost_trainer_begins_with_its_micro_batch_anew():
    """It is lost after 8 of 20 s; it starts in 5 s, is bound from the committed version, and computes all of it."""
    whole, lost = played(), played(children=[{"at": READY + 18, "device": 2}])
    bind = 5.0
    assert ends(lost)[0] == pytest.approx(ends(whole)[0] + 8 + RESTART_S + 5 + bind)
    assert lost.redone_tokens == 0, "the gradient was not in yet"
    assert lost.tokens == whole.tokens


def test_what_an_accumulator_held_is_computed_again():
    """Two micro-batches of 10 s; the second is 5 s old when the trainer goes: both are asked for again."""
    small = {"batch": BATCH | {"tasks_per_step": 2}}
    whole, lost = played(spec=small), played(spec=small, children=[{"at": READY + 10 + 25, "device": 2}])
    assert lost.redone_tokens == 2000
    assert lost.losses[0].back == pytest.approx(READY + 35 + RESTART_S + 5 + 5)
    assert ends(lost)[0] == pytest.approx(ends(whole)[0] + 25 + RESTART_S + 10)
    assert lost.tokens == whole.tokens


def test_a_gang_breaks_off_with_the_rank_that_it_lost_and_is_formed_anew():
    """Two ranks need 10 s for both rows. One is lost after 4 s; it starts, both are bound, all begins anew."""
    gang = {"resources": {"rollout_devices": 2, "training_devices": 2}, "policies": {"solver": {"devices": 2}}}
    whole = played(spec=gang)
    lost = played(spec=gang, children=[{"at": READY + 0.5 + 14, "device": 3}])
    form_and_swap = 0.5 + 5
    assert ends(lost)[0] == pytest.approx(ends(whole)[0] + 4 + RESTART_S + 5 + form_and_swap)
    assert lost.tokens == whole.tokens
    broken = [i for i in lost.intervals if i.kind == "train" and i.ended == pytest.approx(READY + 14.5)]
    assert len(broken) == 2, "neither rank goes on"


def test_a_host_that_goes_is_replaced_after_the_declared_delay():
    """Both engines are on it: nobody decodes from its loss until new devices came, started and loaded."""
    gone = {"node_devices": 2, "nodes": [{"at": READY + 4, "node": 0}], "detect": 5, "declare": 30, "replace": 100}
    report = played(**gone)
    back = 100 + 5 + 2
    assert report.recovery_s == pytest.approx(back)
    assert report.lost_s == pytest.approx(2 * back)
    assert ends(report)[0] == pytest.approx(READY + 31 + back), "the replies go on with the tokens they had"
    assert {loss.cause for loss in report.losses} == {"node"}
    new = [held for held in report.held.values() if held.since > READY]
    assert [held.since for held in new] == pytest.approx([READY + 104] * 2)


def test_a_host_that_comes_back_goes_on_with_its_leases():
    report = played(node_devices=2, nodes=[{"at": READY + 4, "node": 0, "back": 20}])
    assert report.recovery_s == pytest.approx(20 + 5 + 2)
    assert len(report.held) == 3, "no lease was replaced"


def test_a_run_survives_the_loss_of_all_its_devices_at_once():
    many = {"resources": {"rollout_devices": 7}}
    report = played(spec=many, nodes=[{"at": READY + 4, "node": 0}], replace=40)
    assert len(report.losses) == 8
    assert all(loss.back is not None for loss in report.losses)


def test_without_other_devices_a_run_waits_and_the_simulation_says_so():
    with pytest.raises(SimulationError, match="waiting for a device to replace a lost one"):
        played(node_devices=1, nodes=[{"at": READY, "node": 2}], replace=None)


def test_a_slow_engine_takes_longer_by_its_factor_while_it_is_slow():
    half = played(slow=[{"device": 0, "factor": 3.0, "since": READY + 5, "until": READY + 11}])
    assert ends(half)[0] == pytest.approx(READY + 31 + 4), "5 s, then 6 s for 2 s of work, then 3 s"


def test_a_slow_trainer_takes_longer_by_its_factor_while_it_is_slow():
    slow = played(slow=[{"device": 2, "factor": 2.0, "since": READY + 20, "until": READY + 26}])
    assert ends(slow)[0] == pytest.approx(READY + 31 + 3)


def test_work_of_a_gang_goes_at_the_pace_of_its_slowest_device():
    faults = Faults.model_validate(
        {"slow": [{"device": 0, "factor": 2.0, "since": 10, "until": 14}, {"device": 1, "factor": 4.0, "since": 12}]}
    )
    assert faults.takes(frozenset({0, 1}), 0.0, 10.0) == 10.0
    assert faults.takes(frozenset({0, 1}), 8.0, 5.0) == pytest.approx(2 + 2 + 8)
    assert faults.takes(frozenset({0}), 8.0, 5.0) == pytest.approx(2 + 4 + 1)


def test_spot_devices_are_recalled_taken_and_come_back():
    spot = [{"at": READY + 1, "devices": 1}, {"at": READY + 50, "devices": 2}]
    report = played(spot=spot, notice=3)
    [loss] = report.losses
    assert (loss.cause, loss.at) == ("preempted", READY + 4)
    assert loss.back == pytest.approx(READY + 50 + 5 + 2)
    assert ends(report)[0] == pytest.approx(READY + 31)


def test_groups_of_lost_rollout_workers_are_played_again():
    report = played(workers=[{"at": READY + 4, "again": 6}])
    assert ends(report)[0] == pytest.approx(READY + 31 + 4 + 6)
    assert report.replayed_tokens == pytest.approx(1200), "two episodes of the step, and one of the evaluation beside"


def test_attempts_break_off_more_often_in_an_outage():
    report = played(workload={"outages": [{"since": 0, "until": READY + 15, "share": 1.0}]})
    assert ends(report)[0] == pytest.approx(READY + 31 + 10), "the second attempts end after it"


def test_losses_by_chance_belong_to_the_device_and_the_seed():
    rates = {"rates": [{"use": "engine", "every": 20.0}, {"use": "trainer", "every": 30.0}]}
    one, again = played(**rates), played(**rates)
    assert one == again
    assert one.losses
    other = simulate(told(**rates).model_copy(update={"seed": 5}))
    assert [loss.at for loss in other.losses] != [loss.at for loss in one.losses]
    streaming = played(preset="flexmarl", **rates)
    assert streaming.losses[0].at == one.losses[0].at


def test_the_mean_time_between_losses_is_the_stated_one():
    faults = Faults.model_validate({"rates": [{"use": "engine", "every": 20.0}]})
    times = [faults.losses(e.DeviceUse.ENGINE, device, 1, number) for device in range(40) for number in range(50)]
    assert sum(time or 0.0 for time in times) / len(times) == pytest.approx(20.0, rel=0.06)
    assert faults.losses(e.DeviceUse.TRAINER, 0, 1, 0) is None


def test_the_core_is_told_what_a_real_driver_tells(monkeypatch: pytest.MonkeyPatch):
    cluster = alone(told(node_devices=2, nodes=[{"at": READY + 4, "node": 0}], replace=60))
    handle, seen = cluster.driver.core.handle, []

    def noted(fact: e.Event, now: float) -> Decision:
        seen.append((now, fact))
        return handle(fact, now)

    monkeypatch.setattr(cluster.driver.core, "handle", noted)
    while len(cluster.log.stepped) < 1:
        assert cluster.clock.step()
    facts = [(now, fact.kind) for now, fact in seen if fact.kind in ("child_lost", "lease_ended", "devices_granted")]
    assert facts == [
        (0.0, "devices_granted"),
        (READY + 9, "child_lost"), (READY + 9, "child_lost"),
        (READY + 34, "lease_ended"), (READY + 34, "lease_ended"),
        (READY + 64, "devices_granted"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"children": [{"at": 1, "device": 3}]}, "/faults/children: there is no device 3; the last one is 2"),
        ({"nodes": [{"at": 1, "node": 1}]}, "/faults/nodes: there is no host 1; the last one is 0"),
        ({"slow": [{"device": 0, "factor": 2, "since": 5, "until": 5}]}, "/slow/0/until: 5 must lie after since"),
        (
            {"workload": {"outages": [{"since": 5, "until": 4, "share": 0.5}]}},
            "/workload/outages/0/until: 4 must lie after since, which is 5",
        ),
    ],
)
def test_faults_that_cannot_be_are_refused(faults: dict[str, Any], says: str):
    with pytest.raises(SpecProblems, match=says):
        told(**faults)
