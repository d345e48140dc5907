"""Pools, nodes and devices: what admins change, and what a change keeps."""

import pytest

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import queries
from flexmarl.store import nodes
from flexmarl.store.nodes import DeviceFacts, NodeFacts

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def box(db) -> None:
    register()


def register(incarnation="i1", devices=2) -> None:
    facts = [DeviceFacts(f"box.cpu{i}", "cpu", i) for i in range(devices)]
    nodes.register_node(store_connection(), NodeFacts("box", "127.0.0.1:1", incarnation, "0.1"), facts)


def test_a_cordoned_node_gives_no_device_and_stays_cordoned_after_a_registration(api, admin_api) -> None:
    assert queries.fit({"engine": ("default", 2)})["fits_now"]
    assert api.post("/api/v1/nodes/box/actions/cordon").status_code == 403
    row = admin_api.post("/api/v1/nodes/box/actions/cordon").json()
    assert (row["state"], row["cordoned"]) == ("cordoned", True)
    register("i2")
    assert not queries.fit({"engine": ("default", 2)})["fits_now"]
    assert nodes.free_devices(store_connection(), "default") == []
    assert admin_api.post("/api/v1/nodes/box/actions/uncordon").json()["state"] == "ready"
    assert queries.fit({"engine": ("default", 2)})["fits_now"]
    assert list(AuditEntry.objects.order_by("id").values_list("action", flat=True))[-2:] == [
        "node.cordon",
        "node.uncordon",
    ]


def test_a_cordoned_device_is_not_free(admin_api) -> None:
    row = admin_api.post("/api/v1/devices/box.cpu0/actions/cordon").json()
    assert (row["state"], row["free"]) == ("cordoned", False)
    assert admin_api.get("/api/v1/devices?free=true").json()["count"] == 1
    assert [d.id for d in nodes.free_devices(store_connection(), "default")] == ["box.cpu1"]


def test_what_does_not_exist_is_not_found(admin_api) -> None:
    for path in ("nodes/none", "devices/none", "pools/none", "nodes/none/actions/cordon", "devices/x/actions/cordon"):
        method = admin_api.post if "actions" in path else admin_api.get
        assert method(f"/api/v1/{path}").status_code == 404, path
    assert admin_api.post("/api/v1/nodes/box/actions/melt").status_code == 404


def test_a_lost_device_cannot_be_uncordoned_into_being(admin_api) -> None:
    register("i2", devices=1)
    assert admin_api.get("/api/v1/devices/box.cpu1").json()["state"] == "lost"
    assert admin_api.post("/api/v1/devices/box.cpu1/actions/uncordon").status_code == 404


def test_a_silent_node_shows_and_gives_nothing(api) -> None:
    store_connection().execute("UPDATE store.node SET heartbeat_at = now() - interval '1 minute'")
    assert api.get("/api/v1/nodes/box").json()["state"] == "silent"
    assert not queries.fit({"engine": ("default", 1)})["fits_now"]


def test_pools_are_changed_under_if_match_only(admin_api) -> None:
    made = admin_api.post("/api/v1/pools", {"name": "gpu", "description": "two cards"})
    assert (made.status_code, made["ETag"]) == (201, 'W/"1"')
    assert admin_api.post("/api/v1/pools", {"name": "gpu"}).json()["code"] == "duplicate_name"
    assert admin_api.post("/api/v1/pools", {"name": "No Such Name"}).status_code == 400
    url = made["Location"]
    assert admin_api.patch(url, {"description": "x"}).json()["code"] == "precondition_required"
    changed = admin_api.patch(url, {"description": "x"}, headers={"If-Match": made["ETag"]})
    assert (changed.json()["description"], changed["ETag"]) == ("x", 'W/"2"')
    stale = admin_api.patch(url, {"description": "y"}, headers={"If-Match": made["ETag"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    assert admin_api.delete(url, headers={"If-Match": 'W/"2"'}).status_code == 204
    assert admin_api.get(url).status_code == 404


def test_a_pool_with_devices_cannot_be_deleted(admin_api) -> None:
    tag = admin_api.get("/api/v1/pools/default")["ETag"]
    answer = admin_api.delete("/api/v1/pools/default", headers={"If-Match": tag})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_a_device_moves_to_a_pool_that_exists_and_stays_there(api, admin_api) -> None:
    assert admin_api.patch("/api/v1/devices/box.cpu0", {"pool": "gpu"}).status_code == 404
    admin_api.post("/api/v1/pools", {"name": "gpu"})
    assert api.patch("/api/v1/devices/box.cpu0", {"pool": "gpu"}).status_code == 403
    assert admin_api.patch("/api/v1/devices/box.cpu0", {"pool": "gpu"}).json()["pool"] == "gpu"
    register("i2")
    counts = {pool["name"]: (pool["devices"], pool["free"]) for pool in api.get("/api/v1/pools").json()["results"]}
    assert counts == {"default": (1, 1), "gpu": (1, 1)}
