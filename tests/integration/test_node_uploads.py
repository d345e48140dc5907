"""What a node makes that nobody reaches is read by all: engines beside the control plane serve the weights that its
trainers make, bit for bit, and its checkpoints are downloaded, forked and promoted as any.

The control plane's web process is killed while a chunk is half sent to it, and the node's agent: nothing is lost, and
nothing half is served.
"""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import torch

from tests.support.door_node import DoorNode
from tests.support.machine import wait_for
from tests.support.promised import kept_its_promises
from tests.support.system import Api, ApiError, System
from workers.transfer import LocalTier
from workers.transfer.contents import Encoded, encode

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

WITHIN_S = 240.0
APART = {"rollout_pool": "default", "training_pool": "maker"}
STEPS = 4
MODEL_ENDS = {"done", "failed", "cancelled"}
SMALL: dict[str, Any] = {
    "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
    "evaluation": {"every_steps": 1000, "tasks": 4},
    "checkpoints": {"every_steps": 2, "keep_last": 1, "keep_best": 0, "keep_every": 2},
    "budget": {"train_steps": STEPS, "target": None},
    "resources": APART,
}


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def maker(system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorNode]:
    api = system.api()
    made = api.post("/node-tokens", {"node": "maker-1", "pool": "maker"})
    with DoorNode(tmp_path_factory.mktemp("maker") / "home", system.url, made["secret"]) as node:
        wait_for(lambda: "maker-1" in {row["name"] for row in api.get("/nodes")["results"]}, WITHIN_S)
        yield node
    api.call("DELETE", f"/node-tokens/{made['id']}")


def answers(system: System) -> bool:
    try:
        return bool(system.api().get("/nodes"))
    except (OSError, ApiError):
        return False


def answered(api: Api, url: str, body: dict[str, Any]) -> Any:
    """Ask; None while an engine starts."""
    try:
        return api.call("POST", url, body)
    except TimeoutError:
        return None
    except ApiError as refused:
        if refused.status != 503:
            raise
        return None


def rows(system: System, query: str, *values: object) -> list[Any]:
    with psycopg.connect(system.database_url) as conn:
        return conn.execute(query.encode(), values).fetchall()


def same(there: LocalTier, here: LocalTier, digest: str) -> None:
    """Compare a content in two places bit by bit."""
    sent, came = there.get(digest), here.get(digest)
    assert sent.keys() == came.keys()
    assert all(torch.equal(sent[name], came[name]) for name in sent)


def half_sent(system: System, maker: DoorNode, run_no: int, content: Encoded) -> socket.socket:
    """Send a content's manifest to the control plane, and the first half of its chunk; the connection stays open."""
    place = urlsplit(system.url)
    path = f"/nodes/contents/{run_no}/{content.digest}"
    headers = {"Authorization": f"Bearer {maker.environment['FLEXMARL_NODE_TOKEN']}"}
    connection = http.client.HTTPConnection(place.netloc, timeout=WITHIN_S)
    connection.request("PUT", f"{path}?policy=speaker&keep=step-9", content.manifest, headers)
    begun = connection.getresponse()
    told = json.loads(begun.read())
    assert (begun.status, told["missing"]) == (200, list(content.description.chunks)), told
    connection.putrequest("PUT", f"{path}/chunks/{content.description.chunks[0]}?keeper={told['keeper']}")
    for name, value in {**headers, "Content-Length": str(content.description.bytes)}.items():
        connection.putheader(name, value)
    connection.endheaders(b"".join(content.pieces[0])[: content.description.bytes // 2])
    return connection.sock


def passing_on(system: System) -> bool:
    """Tell whether the web process speaks with the node that stores uploads."""
    ((address,),) = rows(system, "SELECT address FROM store.node WHERE address <> ''")
    web = psutil.Process(system.processes()["web"])
    ends = [str(one.raddr.port) for one in web.net_connections("tcp") if one.raddr and one.status == "ESTABLISHED"]
    return address.rpartition(":")[2] in ends


def test_engines_here_serve_what_is_trained_where_nobody_reaches(system: System, maker: DoorNode) -> None:
    api = system.api()
    run = api.create_run(name="made", template="reference_game", overrides=SMALL)
    api.wait(run["id"], lambda row: row["step"] >= 1, WITHIN_S)
    half = encode({"w": torch.rand(1_000_000)}, {"kind": "weights"})
    with half_sent(system, maker, run["no"], half):
        wait_for(lambda: passing_on(system), WITHIN_S)
        system.kill("web")
    wait_for(lambda: answers(system), WITHIN_S)
    api.wait(run["id"], lambda row: row["step"] >= 2, WITHIN_S)
    maker.kill("node")
    ended = api.finish(run["id"], WITHIN_S)
    assert (ended["status"], ended["step"]) == ("completed", STEPS), ended["reason_text"]
    kept_its_promises(system, run["no"])
    versions = rows(
        system, "SELECT digest, state FROM store.policy_version WHERE run_id = %s AND version = %s", run["no"], STEPS
    )
    there, here = LocalTier(maker.home), LocalTier(system.home)
    assert here.locate(half.digest) is None, "half a chunk is nothing"
    assert not here.chunk(half.description.chunks[0]).exists()
    assert versions
    for weights, state in versions:
        same(there, here, weights)
        same(there, here, state)
    query = "SELECT step, node, path, state FROM store.checkpoint WHERE run_id = %s ORDER BY step"
    root = system.home / "checkpoints" / f"run-{run['no']}"
    ((keeper,),) = rows(system, "SELECT name FROM store.node WHERE address <> ''")
    kept = rows(system, query, run["no"])
    assert kept == [(step, keeper, str(root / f"step-{step}"), "whole") for step in (2, STEPS)]
    wait_for(lambda: not list((maker.home / "checkpoints").glob("run-*/*")), WITHIN_S)


@pytest.mark.full
def test_engines_on_a_second_node_with_a_token_serve_what_the_first_uploads(
    system: System, maker: DoorNode, tmp_path: Path
) -> None:
    api = system.api()
    made = api.post("/node-tokens", {"node": "server-1", "pool": "server"})
    with DoorNode(tmp_path / "server", system.url, made["secret"]) as server:
        wait_for(lambda: "server-1" in {row["name"] for row in api.get("/nodes")["results"]}, WITHIN_S)
        pools = {"rollout_pool": "server", "training_pool": "maker"}
        run = api.create_run(name="two", template="reference_game", overrides={**SMALL, "resources": pools})
        ended = api.finish(run["id"], WITHIN_S)
        assert (ended["status"], ended["step"]) == ("completed", STEPS), ended["reason_text"]
        kept_its_promises(system, run["no"])
        query = "SELECT digest FROM store.policy_version WHERE run_id = %s AND version > 0"
        made_there = {digest for (digest,) in rows(system, query, run["no"])}
        at_maker, at_server = LocalTier(maker.home), LocalTier(server.home)
        served = {digest for digest in made_there if at_server.locate(digest) is not None}
        assert served, "its engines loaded what the other node trained"
        for digest in served:
            same(at_maker, at_server, digest)
    api.call("DELETE", f"/node-tokens/{made['id']}")


@pytest.mark.full
def test_checkpoints_made_there_are_those_of_the_installation(system: System, maker: DoorNode, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    api = system.api()
    run = api.create_run(name="adapters", template="hot_cold_adapters", overrides=SMALL)
    ended = api.finish(run["id"], WITHIN_S)
    assert ended["status"] == "completed", ended["reason_text"]
    archive = f"/runs/{run['id']}/checkpoints/{STEPS}/archive"
    adapters = api.download(f"{archive}?form=adapter", tmp_path / "adapter")
    assert "base-0" in {path.name for path in adapters.iterdir()}
    whole = api.download(f"{archive}?form=merged&policy=guesser", tmp_path / "merged")
    AutoModelForCausalLM.from_pretrained(whole / "guesser")
    fork = {"checkpoint": STEPS, "take": "training_state", "name": "fork", "start": True}
    pools = {"rollout_pool": "default", "training_pool": "default"}
    overrides = {"budget": {"train_steps": 1}, "resources": pools}
    made = api.post(f"/runs/{run['id']}/actions/fork", {**fork, "overrides": overrides})
    forked = api.finish(made["id"], WITHIN_S)
    assert forked["status"] == "completed", forked["reason_text"]
    where = f"/runs/{run['id']}/checkpoints/{STEPS}/actions/promote"
    model = api.post(where, {"name": "promoted", "policy": "guesser"})
    ended = wait_for(lambda: (m := api.get(f"/models/{model['id']}"))["state"] in MODEL_ENDS and m, WITHIN_S)
    assert ended["state"] == "done", ended["reason_text"]
    body = {"model": f"{run['key']}/guesser@{STEPS}", "prompt": [5, 6, 7], "max_tokens": 4}
    served = wait_for(lambda: answered(api, f"{system.url}/v1/completions", body), WITHIN_S)
    assert served["choices"]
