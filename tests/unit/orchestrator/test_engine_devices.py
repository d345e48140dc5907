"""Engines of several devices: asked for whole, counted whole, moved whole; one device is decided on as ever."""

import json

from flexmarl.contracts.events import DeviceUse, LeaseRecalled
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.fake_cluster import make_spec, running, started

WIDE = {"engine": "vllm", "rollout_devices": 4, "engine_devices": 2}


def test_a_run_asks_for_engines_and_says_of_how_many_devices() -> None:
    cluster = started(make_spec(resources=WIDE, budget__train_steps=3), seed=1).run()
    (asked,) = cluster.commands("request_devices")
    assert (asked.engines, asked.engine_devices, asked.trainers) == (2, 2, 1)
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, 3)


def test_an_engine_that_is_recalled_is_replaced_by_one_of_as_many_devices() -> None:
    cluster = running(make_spec(resources=WIDE, budget__train_steps=6), seed=2)
    cluster.run(until=lambda x: x.core.state.step == 1)
    for use, devices in ((DeviceUse.ENGINE, 2), (DeviceUse.TRAINER, 1)):
        lease = cluster.core.state.fleet.at_work(use)[0]
        cluster.tell(LeaseRecalled(lease_id=lease.lease_id, reason="box is drained"))
        asked = [command for command in cluster.commands("request_devices") if command.replaces == lease.lease_id]
        assert [command.engine_devices for command in asked] == [devices]
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED


def test_a_request_for_engines_of_one_device_is_written_as_in_older_logs() -> None:
    cluster = started(make_spec(budget__train_steps=1), seed=1).run()
    (asked,) = cluster.commands("request_devices")
    assert "engine_devices" not in json.loads(asked.model_dump_json())
