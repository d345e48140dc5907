"""Pools whose hosts come from a Ray cluster: options, dry run, refusals, and what the loop does with Ray's words.

The bridge is played by a script here; `test_ray_bridge.py` tests the real one against a made-up Ray, and
`tests/integration/test_ray_story.py` asks a real cluster.
"""

import json
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.providers import ray_connection
from flexmarl.store.control import host_jobs, nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from tests.support.providing import jobs, rounds

pytestmark = pytest.mark.django_db

RAY = {"type": "ray", "address": "127.0.0.1:6379", "max_nodes": 2}
PLAYED = """
import json, os, pathlib, sys, time
folder = pathlib.Path(__file__).parent
plan = json.loads((folder / "plan.json").read_text())
with (folder / "starts").open("a") as out:
    out.write(json.dumps({"argv": sys.argv[1:], "environment": dict(os.environ)}) + "\\n")
if plan.get("dies"):
    sys.exit(plan["dies"])
print(json.dumps(plan.get("start", {"ready": "2.60.0"})), flush=True)
known = {}
for line in sys.stdin:
    request = json.loads(line)
    with (folder / "calls").open("a") as out:
        out.write(line)
    plan = json.loads((folder / "plan.json").read_text())
    if request["call"] == plan.get("hangs"):
        time.sleep(60)
    if request["call"] == "submit":
        known[request["given"]["name"]] = [dict(native="pg1", state="pending", reason="PENDING (QUEUED)")]
    usual = {"submit": "pg1", "look": known, "capacity": {}}
    answer = plan.get(request["call"], {"result": usual.get(request["call"])})
    print(json.dumps({"id": request["id"], **answer}), flush=True)
"""


class PlayedBridge:
    """What stands for the interpreter with Ray: keeps what it was told, and says what a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "played.py").write_text(PLAYED)
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/played.py "$@"\n')
        self.python.chmod(0o755)
        self.says()

    def says(self, **plan: Any) -> None:
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def knows(self, name: str, state: str, reason: str, native: str = "pg1", **more: Any) -> None:
        """Let the cluster know a host, in this state from now on."""
        began = time.time() if state != "pending" else None
        sighting = {"native": native, "state": state, "reason": reason, "place": "n1", "started_at": began, **more}
        self.says(look={"result": {name: [sighting]}})

    def calls(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / "calls"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line["given"] for line in lines if line["call"] == kind]

    def starts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "starts").read_text().splitlines()]


@pytest.fixture
def bridge(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "bridge"
    folder.mkdir()
    played = PlayedBridge(folder)
    settings.RAY_PYTHON = str(played.python)
    settings.COMMAND_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
    settings.RAY_ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_ADDRESS": "elsewhere:1"}
    settings.HOME = tmp_path / "home"
    settings.HOME.mkdir()
    settings.CLUSTER_KEY = "cluster-key-of-the-test"
    monkeypatch.setattr(ray_connection, "_connections", {})
    yield played
    for connection in ray_connection._connections.values():
        connection.close()


@pytest.fixture
def pool(admin_api: Any, bridge: PlayedBridge) -> str:
    made = admin_api.post("/api/v1/pools", {"name": "batch", "provider": {**RAY, "min_nodes": 1}}, format="json")
    assert made.status_code == 201, made.content
    return "batch"


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        ({"address": "auto"}, "/provider/address", "10.0.0.4:6379"),
        ({"address": "ray://h:99999999"}, "/provider/address", ""),
        ({"resources": {"GPU": 1}}, "/provider/resources/GPU", "set devices instead"),
        ({"resources": {"a b": 1}}, "/provider/resources/a b", "use letters"),
        ({"resources": {"h100": 1.5}}, "/provider/resources/h100", "whole numbers"),
        ({"env_vars": {"DATABASE_URL": "x"}}, "/provider/env_vars/DATABASE_URL", "remove it"),
        ({"env_vars": {"FLEXMARL_POOL": "x"}}, "/provider/env_vars/FLEXMARL_POOL", "remove it"),
        ({"env_vars": {"A-B": "x"}}, "/provider/env_vars/A-B", "use letters"),
        ({"devices": 1}, "/provider/devices", "set 2"),
        ({"min_nodes": 3}, "/provider/min_nodes", "max_nodes, which is 2"),
        ({"partition": "gpu"}, "/provider/partition", ""),
    ],
)
def test_options_are_refused_with_field_rule_and_legal_value(
    admin_api: Any, changes: dict[str, Any], pointer: str, words: str
) -> None:
    answer = admin_api.post("/api/v1/pools", {"name": "batch", "provider": {**RAY, **changes}}, format="json")
    assert answer.status_code == 400
    errors = answer.json()["errors"]
    assert [error["pointer"] for error in errors] == [pointer]
    assert words in f"{errors[0]['detail']} {errors[0]['hint']}"


def test_the_dry_run_shows_what_would_be_asked_what_the_cluster_has_and_no_secret(
    admin_api: Any, pool: str, bridge: PlayedBridge, settings: Any
) -> None:
    options = {**RAY, "kind": "cuda", "devices": 4, "memory_gib": 2, "resources": {"h100": 1}, "env_vars": {"A": "b"}}
    admin_api.post("/api/v1/pools", {"name": "gpus", "provider": options}, format="json")
    has = {"ray": "2.60.0", "nodes": [{"name": "n1 (10.0.0.5)", "has": "CPU 8, GPU 4"}], "free": "CPU 6, GPU 4"}
    bridge.says(capacity={"result": has})
    found = admin_api.get("/api/v1/pools/gpus/submission").json()
    assert '{"CPU": 2.0, "GPU": 4.0, "memory": 2147483648.0, "h100": 1.0}' in found["command"]
    assert "STRICT_PACK" in found["command"]
    assert found["offers"] == ["n1 (10.0.0.5): CPU 8, GPU 4", "Free now: CPU 6, GPU 4"]
    assert "A=b " in found["script"]
    assert "-m workers.adopted workers.allocated " in found["script"], "the kernel ends it with its actor"
    assert bridge.calls("submit") == []
    rounds(2)
    [asked] = bridge.calls("submit")
    assert asked["name"] == jobs(admin_api)[0]["name"]
    kept = Path(found["settings_file"])
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    secrets = {json.loads(kept.read_text())[name] for name in ("DATABASE_URL", "FLEXMARL_CLUSTER_KEY")}
    [start] = bridge.starts()
    shown = json.dumps(found) + json.dumps(asked) + json.dumps(start)
    assert not [secret for secret in secrets if secret in shown]
    assert start["environment"]["RAY_AUTH_MODE"] == "token"
    assert "RAY_ADDRESS" not in start["environment"], "the pool says which cluster it is"
    assert start["argv"][-1] == RAY["address"]


def test_the_actor_alone_is_told_a_node_token(admin_api: Any, bridge: PlayedBridge, settings: Any) -> None:
    settings.HOST_SETTINGS = {"FLEXMARL_CONTROL_URL": "https://flexmarl.example.org", "FLEXMARL_EXCHANGE_KEY": "ab"}
    provider = {**RAY, "access": "node_token", "checkout": "/opt/flexmarl", "env_vars": {"A": "b"}, "min_nodes": 1}
    admin_api.post("/api/v1/pools", {"name": "batch", "provider": provider}, format="json")
    rounds(2)
    [given] = bridge.calls("submit")
    asked = given["asked"]
    token = asked["environment"].pop("FLEXMARL_NODE_TOKEN")
    assert NodeToken.objects.get(key=token[4:16]).node == "batch-1"
    assert asked["environment"] == {"A": "b", "FLEXMARL_CONTROL_URL": "https://flexmarl.example.org"}
    assert (asked["folder"], asked["log"]) == ("/opt/flexmarl", "/tmp/flexmarl-PLACEMENT_GROUP_ID.log")
    assert not {"--settings", token} & set(asked["command"])
    bridge.says(capacity={"result": {"nodes": [], "free": ""}})
    found = admin_api.get("/api/v1/pools/batch/submission").json()
    assert (found["settings_file"], "FLEXMARL_NODE_TOKEN=fmn_... " in found["script"]) == ("", True)
    assert token not in json.dumps([found, bridge.starts(), {**given, "asked": asked}])
    assert not [notice for notice in found["notices"] if "_URL" in notice]


def test_a_host_is_submitted_waits_in_rays_words_works_and_is_cancelled(
    admin_api: Any, pool: str, bridge: PlayedBridge
) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], job["native"]) == ("pending", "pg1")
    bridge.knows(job["name"], "pending", "PENDING (INFEASIBLE): asks for CPU 2")
    rounds()
    assert jobs(admin_api)[0]["reason"] == "PENDING (INFEASIBLE): asks for CPU 2"
    bridge.knows(job["name"], "running", "ALIVE")
    rounds()
    [job] = jobs(admin_api)
    assert (job["state"], job["place"], job["started_at"] is not None) == ("running", "n1", True)
    assert admin_api.post(f"{job['url']}/actions/cancel").status_code == 200
    rounds()
    assert bridge.calls("cancel") == [{"native": "pg1"}]
    bridge.knows(job["name"], "ended", "STOPPED")
    rounds()
    ended = next(row for row in jobs(admin_api) if row["id"] == job["id"])
    assert (ended["state"], ended["reason"]) == ("ended", "STOPPED")


def test_a_host_that_was_never_noted_is_found_by_its_name(admin_api: Any, pool: str, bridge: PlayedBridge) -> None:
    rounds()
    [job] = jobs(admin_api)
    bridge.knows(job["name"], "pending", "PENDING (QUEUED): asks for CPU 2", native="pg7")
    rounds()
    [job] = jobs(admin_api)
    assert (job["state"], job["native"]) == ("pending", "pg7")
    assert bridge.calls("submit") == []


@pytest.mark.parametrize(
    ("python", "plan", "reason", "step"),
    [
        ("", {}, "FLEXMARL_RAY_PYTHON is not set", "set FLEXMARL_RAY_PYTHON to that interpreter"),
        ("/nowhere/python", {}, "/nowhere/python cannot be run", "requirements/ray.txt"),
        (None, {"start": {"failed": "missing", "words": "No module named 'ray'"}}, "has no Ray", "Install Ray"),
        (
            None,
            {"start": {"failed": "versions", "words": "Version mismatch: The cluster was started with: Ray: 2.59.0"}},
            "Ray: 2.59.0",
            "at the cluster's version",
        ),
    ],
)
def test_what_must_be_installed_first_is_a_refusal_with_the_next_step(
    admin_api: Any,
    pool: str,
    bridge: PlayedBridge,
    settings: Any,
    python: str | None,
    plan: Any,
    reason: str,
    step: str,
) -> None:
    settings.RAY_PYTHON = settings.RAY_PYTHON if python is None else python
    bridge.says(**plan)
    rounds(2)
    [job] = jobs(admin_api)
    assert job["state"] == "refused"
    assert reason in job["reason"]
    assert step in job["next_step"]
    notices = admin_api.get("/api/v1/pools/batch/submission").json()["notices"]
    assert any(reason in notice and step in notice for notice in notices)


def test_what_is_no_longer_installed_ends_no_host(
    admin_api: Any, pool: str, bridge: PlayedBridge, settings: Any
) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    bridge.knows(job["name"], "running", "ALIVE")
    rounds()
    ray_connection.connection_to(RAY["address"]).close()
    settings.RAY_PYTHON = ""
    rounds()
    [job] = jobs(admin_api)
    assert (job["state"], job["ended_at"]) == ("running", None)
    assert "FLEXMARL_RAY_PYTHON is not set" in job["reason"]
    assert job["next_step"]


def test_a_cluster_that_does_not_answer_ends_nothing_and_is_asked_less_and_less(
    admin_api: Any, pool: str, bridge: PlayedBridge
) -> None:
    bridge.says(start={"failed": "unreachable", "words": "Connection refused"})
    rounds(4)
    [job] = jobs(admin_api)
    assert job["state"] == "requested"
    assert job["reason"] == "no Ray cluster answers at 127.0.0.1:6379: Connection refused"
    assert "the pool's address" in job["next_step"]
    assert len(bridge.starts()) == 1, "it is started again after a pause"
    connection = ray_connection.connection_to(RAY["address"])
    connection._next_start = 0.0
    rounds()
    assert len(bridge.starts()) == 2
    assert connection._pause_s == 2.0, "twice as long as before"
    connection._next_start = 0.0
    bridge.says()
    rounds(2)
    [job] = jobs(admin_api)
    assert (job["state"], job["reason"], job["next_step"]) == ("pending", "PENDING (QUEUED)", "")


def test_a_bridge_that_dies_or_hangs_is_named_and_replaced(
    admin_api: Any, pool: str, bridge: PlayedBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_connection, "ANSWERS_S", 0.5)
    bridge.says(dies="Check failed: lost the head of the cluster")
    rounds(2)
    assert "ended: Check failed: lost the head of the cluster" in jobs(admin_api)[0]["reason"]
    connection = ray_connection.connection_to(RAY["address"])
    connection._next_start = 0.0
    bridge.says(hangs="look")
    rounds()
    assert "Ray at 127.0.0.1:6379 has not answered" in jobs(admin_api)[0]["reason"]
    assert connection._process is None, "the one that hangs is gone"
    connection._next_start = 0.0
    bridge.says()
    rounds(2)
    assert jobs(admin_api)[0]["state"] == "pending"


def test_a_node_that_ray_drains_is_drained_at_once(admin_api: Any, pool: str, bridge: PlayedBridge) -> None:
    rounds(2)
    [job] = jobs(admin_api)
    bridge.knows(job["name"], "running", "ALIVE")
    rounds()
    found = [DeviceFacts(f"batch-1.cpu{n}", "cpu", n, "CPU", 2**30, "batch") for n in range(2)]
    nodes.register_node(store_connection(), NodeFacts("batch-1", "127.0.0.1:1", "a", "1"), found)
    bridge.knows(job["name"], "running", "ALIVE", ends_at=time.time() + 900, ends_why="Ray drains its node")
    rounds()
    [job] = [row for row in jobs(admin_api) if row["id"] == job["id"]]
    assert (job["state"], job["why"], job["leaving_at"] is not None) == ("leaving", "Ray drains its node", True)
    assert admin_api.get("/api/v1/nodes/batch-1").json()["state"] == "drained"


def test_a_cluster_that_is_silent_keeps_no_other_from_being_asked(
    admin_api: Any, pool: str, bridge: PlayedBridge
) -> None:
    other = {**RAY, "address": "127.0.0.1:6380", "min_nodes": 1}
    admin_api.post("/api/v1/pools", {"name": "other", "provider": other}, format="json")
    ray_connection.connection_to("127.0.0.1:6380")._spawn = lambda python: _fail()  # type: ignore[method-assign]
    rounds(2)
    assert jobs(admin_api)[0]["state"] == "pending"
    [job] = admin_api.get("/api/v1/pools/other/jobs").json()["results"]
    assert (job["state"], job["reason"]) == ("requested", "silent")


def _fail() -> None:
    raise ray_connection.ProviderSilent("silent", "")


def test_the_bridge_ends_with_the_process_that_asks(bridge: PlayedBridge) -> None:
    connection = ray_connection.connection_to(RAY["address"])
    connection.call("look", jobs=[])
    process = connection._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 0


def test_of_two_hosts_of_one_row_one_works(admin_api: Any, pool: str, bridge: PlayedBridge) -> None:
    rounds(2)
    found = host_jobs.open_jobs(store_connection())[0]
    assert host_jobs.claim(store_connection(), found.id, "pg1")
    assert not host_jobs.claim(store_connection(), found.id, "pg2")
