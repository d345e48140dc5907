"""What nobody can host is refused by the plan and at submit alike, with the field, the rule and a legal value."""

from typing import Any

import pytest

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from tests.support.controlplane import SPEC, key

pytestmark = pytest.mark.django_db

VLLM = {"resources": {"engine": "vllm"}, "policies": {role: {"model": {"size": "M"}} for role in SPEC["agents"]}}


def register(name: str, pool: str = "default", **facts: Any) -> None:
    """Let a node with one device be there."""
    device = DeviceFacts(f"{name}.cpu0", "cpu", 0, "CPU", 2**33, pool)
    nodes.register_node(store_connection(), NodeFacts(name, "127.0.0.1:1", "a", "1", facts), [device])


def found(api, spec: dict[str, Any], project: str = "default") -> list[tuple[str, str, str, str]]:
    """What plan and submit say, which is the same."""
    body = {"spec": {**SPEC, **spec}, "project": project}
    planned = api.post("/api/v1/runs/plan", body, format="json")
    assert planned.status_code == 200, planned.content
    made = api.post("/api/v1/runs", body, format="json", headers={"Idempotency-Key": key()})
    told = made.json().get("errors", [])
    assert planned.json()["errors"] == told
    assert made.status_code == (400 if told else 201)
    return [(error["pointer"], error["code"], error["detail"], error["hint"]) for error in told]


def test_a_pool_that_does_not_exist_is_refused_with_those_there_are(api, admin_api) -> None:
    assert found(api, {}) == [], "the installation's pool exists before a node does"
    register("box", "fast")
    admin_api.post("/api/v1/pools", {"name": "planned"})
    admin_api.post("/api/v1/pools", {"name": "closed", "projects": ["default"]})
    told = found(api, {"resources": {"rollout_pool": "fsat", "training_pool": "zzz"}})
    assert told[0] == ("/resources/rollout_pool", "unknown_pool", "Pool fsat does not exist or has no device.",
                       "Did you mean fast?")  # fmt: skip
    assert told[1][:2] == ("/resources/training_pool", "unknown_pool")
    assert "default, fast, planned" in told[1][3]
    for pool in ("fast", "planned"):
        assert found(api, {"resources": {"rollout_pool": pool, "training_pool": pool}}) == []


def test_an_engine_that_no_node_of_the_pool_has_is_refused(api) -> None:
    assert found(api, VLLM) == [], "nothing is known of nodes yet"
    register("old")
    assert found(api, VLLM) == [], "a node that does not say may have any"
    register("old", engines=["torch"])
    register("elsewhere", "gpu", engines=["torch", "vllm"])
    assert found(api, VLLM) == [
        ("/resources/engine", "no_such_engine", "No node of the pool default has the engine vllm.",
         "Set torch, or set FLEXMARL_VLLM_PYTHON on a node of that pool.")
    ]  # fmt: skip
    assert found(api, {}) == []
    assert found(api, {**VLLM, "resources": {"engine": "vllm", "rollout_pool": "gpu"}}) == []
    register("new", engines=["torch", "vllm"])
    assert found(api, VLLM) == []


def test_an_engine_of_more_devices_than_any_host_has_is_refused_and_one_that_waits_is_planned(api) -> None:
    def wide(each: int) -> dict[str, Any]:
        return {**VLLM, "resources": {"engine": "vllm", "rollout_devices": 4, "engine_devices": each}}

    assert found(api, wide(4)) == [], "nothing is known of nodes yet"
    for node in ("a", "b", "c"):
        devices = [DeviceFacts(f"{node}.cpu{i}", "cpu", i, "CPU", 2**33) for i in range(2)]
        nodes.register_node(store_connection(), NodeFacts(node, "127.0.0.1:1", "a", "1", {}), devices)
    assert found(api, wide(4)) == [
        ("/resources/engine_devices", "no_such_host",
         "An engine has its 4 devices on one host; the largest host of default has 2.",
         "Set 1 or 2, or use a pool of larger hosts.")
    ]  # fmt: skip
    assert found(api, wide(2)) == []
    planned = api.post("/api/v1/runs/plan", {"spec": {**SPEC, **wide(2)}, "project": "default"}, format="json").json()
    assert planned["devices"]["needed"][0] == {
        "use": "engine", "pool": "default", "devices": 4, "each": 2, "max_devices": 4, "free": 6,
    }  # fmt: skip
    assert (planned["devices"]["fits_now"], planned["devices"]["fits_ever"]) == (True, True)
    for node in ("a", "b"):  # one device of each is left: enough, and no engine
        store_connection().execute("UPDATE store.device SET state = 'cordoned' WHERE id = %s", [f"{node}.cpu0"])
    nodes.register_node(
        store_connection(), NodeFacts("d", "127.0.0.1:1", "a", "1", {}), [DeviceFacts("d.cpu0", "cpu", 0, "CPU", 2**33)]
    )
    planned = api.post("/api/v1/runs/plan", {"spec": {**SPEC, **wide(2)}, "project": "default"}, format="json").json()
    assert (planned["devices"]["fits_now"], planned["devices"]["fits_ever"]) == (False, False)
    assert "Each engine needs 2 of one host: not free." in planned["devices"]["text"]


def test_a_project_that_does_not_exist_is_refused_by_the_plan_as_at_submit(api, admin_api) -> None:
    body = {"spec": SPEC, "project": "nowhere"}
    for path in ("/api/v1/runs/plan", "/api/v1/runs"):
        answer = admin_api.post(path, body, format="json", headers={"Idempotency-Key": key()})
        assert answer.status_code == 400, answer.content
        [error] = answer.json()["errors"]
        assert (error["pointer"], error["code"]) == ("/project", "unknown_value")
        assert "default" in error["hint"]
        hidden = api.post(path, body, format="json", headers={"Idempotency-Key": key()})
        assert hidden.status_code == 403, "a member learns no more of it than of one that exists"
