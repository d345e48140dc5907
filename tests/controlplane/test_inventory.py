"""Pools, nodes and devices: what admins change, and what a change keeps."""

from datetime import timedelta

import pytest
from django.utils import timezone

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import doctor, queries
from flexmarl.controlplane.inventory.doctor import FindingLevel
from flexmarl.store.control import nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def box(db) -> None:
    register()


def register(incarnation="i1", devices=2) -> None:
    facts = [DeviceFacts(f"box.cpu{i}", "cpu", i) for i in range(devices)]
    nodes.register_node(store_connection(), NodeFacts("box", "127.0.0.1:1", incarnation, "0.1"), facts)


def rule(client, path, action, body=None, tag=None):
    """Act on a node or device under the version that was just read."""
    tag = tag or client.get(f"/api/v1/{path}")["ETag"]
    return client.post(f"/api/v1/{path}/actions/{action}", body or {}, headers={"If-Match": tag})


def test_a_cordoned_node_gives_no_device_and_stays_cordoned_after_a_registration(api, admin_api) -> None:
    assert queries.fit({"engine": ("default", 2)})["fits_now"]
    assert rule(api, "nodes/box", "cordon").status_code == 403
    row = rule(admin_api, "nodes/box", "cordon", {"note": "new fan"}).json()
    assert (row["state"], row["cordoned"], row["note"]) == ("cordoned", True, "new fan")
    register("i2")
    assert not queries.fit({"engine": ("default", 2)})["fits_now"]
    assert nodes.supply(store_connection()).free == []
    back = rule(admin_api, "nodes/box", "enable").json()
    assert (back["state"], back["note"]) == ("ready", "")
    assert queries.fit({"engine": ("default", 2)})["fits_now"]
    first, second = admin_api.get("/api/v1/changes?kind=node&name=box&ordering=at").json()["results"]
    assert (first["action"], first["before"], first["after"]) == (
        "node.cordon",
        {"state": "ready", "note": ""},
        {"state": "cordoned", "note": "new fan"},
    )
    assert (second["action"], second["after"]["state"], second["actor"]) == ("node.enable", "ready", "ada")


@pytest.mark.parametrize("path", ["nodes/box", "devices/box.cpu0"])
def test_rules_are_changed_by_those_who_read_the_present_ones(admin_api, path) -> None:
    answer = admin_api.post(f"/api/v1/{path}/actions/cordon")
    assert (answer.status_code, answer.json()["code"]) == (428, "precondition_required")
    tag = admin_api.get(f"/api/v1/{path}")["ETag"]
    assert rule(admin_api, path, "cordon", tag=tag).status_code == 200
    stale = rule(admin_api, path, "enable", tag=tag)
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    assert stale["ETag"] == 'W/"2"'
    assert rule(admin_api, path, "drain", {"mode": "wait"}, tag=tag).status_code == 412
    tag = admin_api.get(f"/api/v1/{path}")["ETag"]
    assert admin_api.patch(f"/api/v1/{path}", {"note": "x"}).status_code == 428
    assert admin_api.patch(f"/api/v1/{path}", {"note": "x"}, headers={"If-Match": tag}).json()["note"] == "x"


def test_a_cordoned_device_is_not_free(admin_api) -> None:
    row = rule(admin_api, "devices/box.cpu0", "cordon").json()
    assert (row["state"], row["free"]) == ("cordoned", False)
    assert admin_api.get("/api/v1/devices?free=true").json()["count"] == 1
    assert [d.id for d in nodes.supply(store_connection()).free] == ["box.cpu1"]


def test_what_does_not_exist_is_not_found(admin_api) -> None:
    for path in ("nodes/none", "devices/none", "pools/none", "nodes/none/actions/cordon", "devices/x/actions/cordon"):
        method = admin_api.post if "actions" in path else admin_api.get
        assert method(f"/api/v1/{path}").status_code == 404, path
    assert admin_api.post("/api/v1/nodes/box/actions/melt").status_code == 404
    assert admin_api.post("/api/v1/nodes/none/actions/drain", {"mode": "wait", "dry_run": True}).status_code == 404


def test_a_lost_device_cannot_be_ruled_into_being_and_keeps_its_cordon(admin_api) -> None:
    rule(admin_api, "devices/box.cpu1", "cordon")
    register("i2", devices=1)
    assert admin_api.get("/api/v1/devices/box.cpu1").json()["state"] == "lost"
    refused = rule(admin_api, "devices/box.cpu1", "enable")
    assert (refused.status_code, refused.json()["state"]) == (409, "lost")
    register("i3")
    assert admin_api.get("/api/v1/devices/box.cpu1").json()["state"] == "cordoned"


def test_a_silent_node_shows_and_gives_nothing(api) -> None:
    store_connection().execute("UPDATE store.node SET heartbeat_at = now() - interval '1 minute'")
    assert api.get("/api/v1/nodes/box").json()["state"] == "silent"
    assert not queries.fit({"engine": ("default", 1)})["fits_now"]


def test_a_drain_says_how_far_it_is_and_keeps_devices_from_others(admin_api) -> None:
    answer = rule(admin_api, "nodes/box", "drain", {"mode": "move", "note": "new memory"})
    assert (answer.status_code, answer["Location"]) == (202, "/api/v1/nodes/box")
    row = admin_api.get("/api/v1/nodes/box").json()
    assert (row["state"], row["note"], row["drain"]["by"]) == ("drained", "new memory", "ada")
    assert (row["drain"]["mode"], row["drain"]["leases_left"], row["drain"]["done"]) == ("move", 0, True)
    assert nodes.supply(store_connection()).free == []
    assert rule(admin_api, "nodes/box", "enable").json()["drain"] is None
    assert len(nodes.supply(store_connection()).free) == 2


def test_a_drain_with_a_deadline_that_makes_no_sense_is_refused(admin_api) -> None:
    past = (timezone.now() - timedelta(minutes=1)).isoformat()
    soon = (timezone.now() + timedelta(minutes=9)).isoformat()
    for body, code in (
        ({"mode": "stop"}, "required"),
        ({"mode": "stop", "deadline": past}, "out_of_range"),
        ({"mode": "wait", "deadline": soon}, "not_allowed"),
    ):
        answer = rule(admin_api, "nodes/box", "drain", body)
        [error] = answer.json()["errors"]
        assert (answer.status_code, error["pointer"], error["code"]) == (400, "/deadline", code)
    done = rule(admin_api, "devices/box.cpu0", "drain", {"mode": "stop", "deadline": soon})
    assert done.json()["drain"]["deadline"] is not None
    assert admin_api.get("/api/v1/devices/box.cpu0").json()["state"] == "drained"


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
    def move(client, pool="gpu"):
        tag = client.get("/api/v1/devices/box.cpu0")["ETag"]
        return client.patch("/api/v1/devices/box.cpu0", {"pool": pool}, headers={"If-Match": tag})

    assert move(admin_api).status_code == 404
    admin_api.post("/api/v1/pools", {"name": "gpu"})
    assert move(api).status_code == 403
    assert admin_api.patch("/api/v1/devices/box.cpu0", {"pool": "gpu"}).status_code == 428
    assert move(admin_api).json()["pool"] == "gpu"
    register("i2")
    counts = {pool["name"]: (pool["devices"], pool["free"]) for pool in api.get("/api/v1/pools").json()["results"]}
    assert counts == {"default": (1, 1), "gpu": (1, 1)}
    last = AuditEntry.objects.filter(action="device.move").latest("id")
    assert (last.before, last.after) == ({"pool": "default"}, {"pool": "gpu"})


def test_the_doctor_names_rules_that_shut_people_out(admin_api) -> None:
    assert list(doctor.pools()) == []
    admin_api.post("/api/v1/pools", {"name": "gpu", "is_default": True})
    [empty] = doctor.pools()
    assert empty.text == "gpu is the default pool and has no device"
    person = admin_api.post("/api/v1/projects", {"name": "game"}, headers={"Idempotency-Key": "k1"})
    assert person.status_code < 300
    admin_api.patch("/api/v1/pools/gpu", {"projects": ["game"]}, headers={"If-Match": "*"})
    admin_api.put("/api/v1/projects/default/default-pool", {"pool": "gpu"})
    assert "default may not use gpu" in next(doctor.pools()).text
    rule(admin_api, "nodes/box", "drain", {"mode": "wait"})
    told = next(doctor.devices())
    assert (told.level, told.text) == (FindingLevel.WARNING, "node box is drained: 2 devices, 0 free, 0 leases left")
