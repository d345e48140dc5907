"""A node with an address and a token alone trains over a long way, through crashes on both sides and a partition.

The way is TLS, 50 ms there and back, and loses one packet in a hundred. A revoked token stops the node.
"""

import json
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support.door_node import DoorNode
from tests.support.far_link import FarLink
from tests.support.machine import wait_for
from tests.support.promised import kept_its_promises
from tests.support.system import ApiError, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

WITHIN_S = 240.0
CUT_S = 8.0
"""Longer than tokens of commands and leases live."""
SMALL = {
    "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
    "evaluation": {"every_steps": 1000, "tasks": 4},
    "resources": {"rollout_pool": "far", "training_pool": "far"},
}


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def link(system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarLink]:
    with FarLink(tmp_path_factory.mktemp("link"), system.url, delay_s=0.025, loss=0.01) as link:
        yield link


@pytest.fixture(scope="module")
def far(system: System, link: FarLink, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorNode]:
    api = system.api()
    made = api.post("/node-tokens", {"node": "far-1", "pool": "far"})
    home, trusted = tmp_path_factory.mktemp("far") / "home", str(link.certificate)
    with DoorNode(home, link.url, made["secret"], SSL_CERT_FILE=trusted) as node:
        wait_for(lambda: "far-1" in {row["name"] for row in api.get("/nodes")["results"]}, WITHIN_S)
        yield node

        api.call("DELETE", f"/node-tokens/{made['id']}")
        asked = time.monotonic()
        for name, process in node.processes.items():
            assert process.wait(60) != 0
            assert "the node token of far-1 is revoked" in node.said(name)
        assert time.monotonic() - asked < 20


def answers(system: System) -> bool:
    try:
        return bool(system.api().get("/nodes"))
    except (OSError, ApiError):
        return False


def left_in_the_broker(system: System) -> list[bytes]:
    """Return keys of messages that nobody consumes."""
    published = json.loads((system.home / "run" / "environment.json").read_text())
    with redis.Redis.from_url(published["REDIS_URL"]) as client:
        return [key for key in client.keys("dramatiq:*far*") if b"__" not in key]


def test_a_node_without_secrets_trains_through_crashes(system: System, link: FarLink, far: DoorNode) -> None:
    api = system.api()
    secrets = {"DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY"}
    assert not secrets & set(far.environment)
    run = api.create_run(
        name="far", template="reference_game", overrides={**SMALL, "budget": {"train_steps": 8, "target": None}}
    )
    api.wait(run["id"], lambda row: row["step"] >= 3, WITHIN_S)
    far.kill("device")
    link.cut(CUT_S)
    api.wait(run["id"], lambda row: row["step"] >= 5, WITHIN_S)
    system.kill("web")
    far.kill("rollout")
    wait_for(lambda: answers(system), WITHIN_S)
    ended = api.finish(run["id"], WITHIN_S)
    assert ended["status"] == "completed", ended["reason_text"]
    assert ended["step"] == 8
    kept_its_promises(system, run["no"])
    wait_for(lambda: not left_in_the_broker(system), WITHIN_S)


@pytest.mark.full
def test_engines_far_away_serve_what_is_trained_here(system: System, far: DoorNode) -> None:
    api = system.api()
    pools = {"rollout_pool": "far", "training_pool": "default"}
    overrides = {**SMALL, "resources": pools, "budget": {"train_steps": 3, "target": None}, "seed": 77}
    run = api.create_run(name="apart", template="reference_game", overrides=overrides)
    ended = api.finish(run["id"], WITHIN_S)
    assert (ended["status"], ended["step"]) == ("completed", 3), ended["reason_text"]
    kept_its_promises(system, run["no"])
    assert "brought" in far.said("node")
