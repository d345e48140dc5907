"""A node's clock beside the database's: measured at its heartbeats, shown with what to do when it is off."""

import time
from typing import Any

import pytest
from django.test import Client

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import doctor
from flexmarl.controlplane.inventory.node_clocks import clock_row
from flexmarl.store.control import node_beats, nodes

pytestmark = pytest.mark.django_db


@pytest.fixture
def far() -> None:
    nodes.register_node(store_connection(), nodes.NodeFacts("far-1", "", "life-1", "0"), [])


@pytest.mark.usefixtures("far")
def test_a_heartbeat_is_answered_with_the_time_of_the_database() -> None:
    began = time.time()
    told = node_beats.beat(store_connection(), "far-1", "life-1")
    assert began - 1 < told.at < time.time() + 1, "the server of tests runs on this machine"
    assert not node_beats.beat(store_connection(), "far-1", "life-0").alive


@pytest.mark.parametrize(
    ("offset", "took", "state"),
    [(0.9, 0.1, "ok"), (1.2, 0.1, "off"), (-1.2, 0.1, "off"), (1.2, 0.6, "ok"), (0.0, 9.0, "ok")],
)
def test_a_clock_is_off_beyond_what_the_measurement_leaves_open(offset: float, took: float, state: str) -> None:
    row = clock_row({"clock_offset_s": offset, "clock_round_trip_s": took})
    assert row is not None
    assert row["state"] == state
    assert bool(row["reason"]) == bool(row["next_step"]) == (state == "off")
    assert clock_row({"at": 1.0}) is None


@pytest.mark.usefixtures("far")
def test_a_clock_that_is_off_is_told_everywhere_with_the_next_step(person: Any, client_of: Any) -> None:
    admin, page = person("cluster_admin"), Client()
    page.force_login(admin)
    api = client_of(admin)
    assert api.get("/api/v1/nodes/far-1").json()["clock"] is None
    load: dict[str, object] = {"memory_used": 2**30, "clock_offset_s": -3.25, "clock_round_trip_s": 0.01}
    nodes.put_load(store_connection(), "far-1", "life-1", load, {})
    told = api.get("/api/v1/nodes/far-1").json()["clock"]
    assert (told["offset_s"], told["state"]) == (-3.25, "off")
    assert told["reason"].startswith("Its clock is 3.2 s ahead of the database's")
    shown = page.get("/cluster").content.decode()
    assert 'id="clock-far-1"' in shown
    assert "Synchronise the clocks" in shown
    (found,) = (one for one in doctor.devices() if one.check == "clock")
    assert "far-1" in found.text
    nodes.put_load(store_connection(), "far-1", "life-1", {**load, "clock_offset_s": 0.004}, {})
    assert 'id="clock-far-1"' not in page.get("/cluster").content.decode()
