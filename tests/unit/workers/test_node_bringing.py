"""A node brings what a command names from other nodes, under the cluster key, before its child is told."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import ClientSession

from flexmarl.store.control.nodes import NodePeer
from flexmarl.store.node_operations import Carrier, NodeOperation
from workers.door.address import DoorAddress
from workers.door.contents import DoorPeer
from workers.nodes.agent import NodeAgent
from workers.nodes.bringing import Bringing, Elsewhere, among_peers, named_in
from workers.rollout.engines.wire import LoadRequest
from workers.settings import Settings, load
from workers.training.wire import BindRequest, CheckpointRequest, RedoStep, StepRequest
from workers.transfer import LocalTier, relay
from workers.transfer.base import Coming, StateMissing
from workers.transfer.contents import encode
from workers.transfer.peer import Peer


def settings(home: Path, key: str = "key") -> Settings:
    told = load(
        {
            "DATABASE_URL": "postgresql://x/x",
            "REDIS_URL": "redis://x",
            "FLEXMARL_HOME": str(home),
            "FLEXMARL_CLUSTER_KEY": key,
        }
    )
    return replace(told, node=home.name)


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[str]:
    """The endpoint of a real node agent, without its store."""
    agent = NodeAgent(settings(home), None, [], "a")
    async with ClientSession() as session, agent._endpoint.serving(session) as port:
        yield f"127.0.0.1:{port}"


def bring(
    home: Path, addresses: list[str], request: object, key: str = "key", own: str = "", damaged: bool = False,
    content: str = "full",
) -> Awaitable[bool]:  # fmt: skip
    async def store(_: object) -> Elsewhere:
        return Elsewhere([Peer(address, key) for address in addresses if address != own], content)

    return Bringing(settings(home, key), store, own)(7, request, damaged)


async def test_weights_their_base_and_a_training_state_come_from_the_node_that_has_them(tmp_path: Path):
    there, here = LocalTier(tmp_path / "a"), LocalTier(tmp_path / "b", "reader")
    base = there.put({"w": torch.rand(300_000)}, {"kind": "base"}).digest
    weights = there.put({"down": torch.rand(8)}, {"kind": "weights", "base": base}).digest
    state = there.put({"first": torch.rand(8)}, {"kind": "training_state", "weights": weights}).digest
    async with serving(tmp_path / "a") as address:
        await bring(tmp_path / "b", ["127.0.0.1:9", address], LoadRequest("solver", 1, weights))
        assert here.locate(state) is None, "nothing comes that nobody asked for"
        await bring(tmp_path / "b", [address], BindRequest("solver", 1, weights, state))
    for digest in (base, weights, state):
        for name, tensor in there.get(digest).items():
            assert torch.equal(here.get(digest)[name], tensor)


@pytest.mark.parametrize(("content", "made"), [("auto", 1), ("delta", 1), ("full", 0)])
async def test_what_of_a_version_comes_is_as_the_run_says(tmp_path: Path, content: str, made: int):
    there = LocalTier(tmp_path / "a")
    weights = torch.rand(4_000_000).to(torch.bfloat16)
    base = there.put({"w": weights}).digest
    weights[::1000] += 1
    digest = there.put({"w": weights}).digest
    async with serving(tmp_path / "a") as address:
        await bring(tmp_path / "b", [address], LoadRequest("solver", 0, base), content=content)
        await bring(tmp_path / "b", [address], LoadRequest("solver", 1, digest), content=content)
        asked = f"http://{address}/v1/state/{digest}/delta?base={base}"
        async with ClientSession() as session, session.get(f"{asked}&most=1") as response:
            assert response.status == 401
        async with ClientSession(headers={"Authorization": "Bearer key"}) as session:
            async with session.get(f"{asked}&most=much") as response:
                assert response.status == 422
            async with session.get(f"http://{address}/v1/state/{'0' * 64}/delta?base={base}&most=1") as response:
                assert response.status == 404
    assert len(LocalTier(tmp_path / "a", "deltas").claims()) == made
    assert torch.equal(LocalTier(tmp_path / "b", "reader").get(digest)["w"], weights)


async def test_strangers_get_nothing_and_the_child_is_left_to_refuse(tmp_path: Path):
    weights = LocalTier(tmp_path / "a").put({"w": torch.rand(8)}).digest
    async with serving(tmp_path / "a") as address:
        await bring(tmp_path / "b", [address], LoadRequest("solver", 1, weights), key="other")
        await bring(tmp_path / "b", [address], LoadRequest("solver", 1, weights), own=address)
        async with ClientSession() as session:
            chunk = next((tmp_path / "a" / "state").glob("*.chunk")).stem
            for path in (f"/v1/state/{weights}", f"/v1/state/chunks/{chunk}"):
                async with session.get(f"http://{address}{path}") as response:
                    assert response.status == 401
            told = {"Authorization": "Bearer key"}
            async with session.get(f"http://{address}/v1/state/chunks/{chunk}", headers=told) as response:
                assert len(await response.read()) == 32
            told["Range"] = "bytes=30-"
            async with session.get(f"http://{address}/v1/state/chunks/{chunk}", headers=told) as response:
                assert (response.status, len(await response.read())) == (206, 2)
            for path in ("/v1/state/nothing", "/v1/state/chunks/..%2Flock", f"/v1/state/chunks/{'0' * 64}"):
                async with session.get(f"http://{address}{path}", headers=told) as response:
                    assert response.status == 404
    assert LocalTier(tmp_path / "b").locate(weights) is None


async def test_what_a_child_found_damaged_is_fetched_anew(tmp_path: Path):
    there, here = LocalTier(tmp_path / "a"), LocalTier(tmp_path / "b", "reader")
    digest = there.put({"w": torch.rand(3000)}).digest
    asked = LoadRequest("solver", 1, digest)
    async with serving(tmp_path / "a") as address:
        assert await bring(tmp_path / "b", [address], asked)
        assert not await bring(tmp_path / "b", [address], asked), "it is here"
        [chunk] = (tmp_path / "b" / "state").glob("*.chunk")
        chunk.write_bytes(b"\1" + chunk.read_bytes()[1:])
        assert await bring(tmp_path / "b", [address], asked, damaged=True)
        assert not await bring(tmp_path / "b", ["127.0.0.1:9"], asked, damaged=True), "nobody has it"
    assert torch.equal(here.get(digest)["w"], there.get(digest)["w"])


def test_requests_name_what_their_child_reads():
    redo = [RedoStep(2, "two", 0.1, [], ["first", "opponent"]), RedoStep(3, "three", 0.1, [])]
    bind = BindRequest("p", 3, "three", "state", "base", redo, ["first", "newer"])
    assert [digest for digest in named_in(bind) if digest] == [
        "three", "state", "base", "first", "newer", "two", "first", "opponent", "three",
    ]  # fmt: skip
    assert named_in(CheckpointRequest("best", 1, {"p": 1}, {"p": "one"})) == ["one"]
    assert named_in(StepRequest("p", "0:a", [1], 1, 0.1)) == []


async def test_a_chunk_that_a_node_lacks_is_told_from_one_that_it_is_bringing(tmp_path: Path):
    there, here = LocalTier(tmp_path / "a"), LocalTier(tmp_path / "b", "reader")
    encoded = encode({"w": torch.rand(300_000)})
    digest = there.store(encoded).digest
    chunk = there.description(digest).chunks[0]
    async with serving(tmp_path / "b") as address:
        peer = Peer(address, "key")
        room = memoryview(bytearray(there.description(digest).size(0)))
        with here.intending(digest, encoded.manifest), pytest.raises(Coming):
            await asyncio.to_thread(peer.fetch, digest, chunk, room)
        with pytest.raises(StateMissing) as lacks:
            await asyncio.to_thread(peer.fetch, digest, chunk, room)
        assert not isinstance(lacks.value, Coming)


async def test_nodes_whose_engines_take_in_the_same_pass_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relay, "LEAST_WAIT_S", 60.0)
    there = LocalTier(tmp_path / "a")
    digest = there.store(encode({"w": torch.rand(24 * 2**14)}, None, 2**16)).digest
    given: Counter[str] = Counter()
    fetch = Peer.fetch

    def counted(self: Peer, *asked: Any) -> None:
        fetch(self, *asked)
        given[self.name] += 1

    monkeypatch.setattr(Peer, "fetch", counted)
    async with serving(tmp_path / "a") as maker, serving(tmp_path / "b") as one, serving(tmp_path / "c") as other:
        there_is = Elsewhere([Peer(maker, "key")], "full", {each: Peer(each, "key") for each in (one, other)})
        homes = {one: tmp_path / "b", other: tmp_path / "c"}

        async def store(_: object) -> Elsewhere:
            return there_is

        for own, home in homes.items():  # one behind the other: the second finds all that the first was to bring
            assert await Bringing(settings(home), store, own)(7, LoadRequest("solver", 1, digest))
    tiers = [LocalTier(home, "reader") for home in homes.values()]
    assert all(torch.equal(tier.get(digest)["w"], there.get(digest)["w"]) for tier in tiers)
    assert given[f"peer {maker}"] == 24 + 12, "the first has nobody to be given from, the second half of it"
    assert given[f"peer {one}"] == 12


# Nodes with tokens ---------------------------------------------------------------------------------------------------


class PoolKnown(Carrier):
    """A control plane that knows the other nodes of a pool."""

    def __init__(self, *peers: NodePeer) -> None:
        self._peers = list(peers)

    def carry(self, operation: NodeOperation, arguments: dict[str, Any]) -> Any:
        return {"runs.publication_content": "full", "nodes.peers_of": self._peers}[operation.name]

    async def __call__(self, call: Callable[[Any], Elsewhere]) -> Elsewhere:
        return call(self)


def with_token(home: Path) -> Settings:
    told = {"FLEXMARL_HOME": str(home), "FLEXMARL_NODE_TOKEN": "fmn_x", "FLEXMARL_CONTROL_URL": "http://127.0.0.1:1"}
    return replace(load(told), node=home.name)


@asynccontextmanager
async def serving_pool(home: Path) -> AsyncIterator[tuple[str, str]]:
    """The endpoint of a node with a token, and the key that it made."""
    agent = NodeAgent(with_token(home), None, [], "a")
    async with ClientSession() as session, agent._endpoint.serving(session) as port:
        yield f"127.0.0.1:{port}", agent._endpoint.key


async def test_nodes_with_tokens_read_the_node_of_their_pool_that_trained(tmp_path: Path):
    there, here = LocalTier(tmp_path / "a"), LocalTier(tmp_path / "b", "reader")
    digest = there.put({"w": torch.rand(300_000)}).digest
    async with serving_pool(tmp_path / "a") as (address, key):
        for wrong in ("", "key"):
            known = PoolKnown(NodePeer(address, wrong, True, False))
            assert not await Bringing(with_token(tmp_path / "b"), known, "b:1")(7, LoadRequest("solver", 1, digest))
            assert here.locate(digest) is None
        known = PoolKnown(NodePeer("127.0.0.1:9", "x", True, False), NodePeer(address, key, False, True))
        assert await Bringing(with_token(tmp_path / "b"), known, "b:1")(7, LoadRequest("solver", 1, digest))
    assert torch.equal(here.get(digest)["w"], there.get(digest)["w"])


async def test_a_node_with_a_token_lets_its_pool_read_contents_and_nothing_else(tmp_path: Path):
    async with serving_pool(tmp_path / "a") as (address, key), ClientSession() as session:
        shown = {"Authorization": f"Bearer {key}"}
        for method, path in (
            ("POST", "/v1/commands"), ("POST", "/v1/playground"), ("POST", "/v1/scores"),
            ("GET", "/v1/checkpoints/1/1/archive"), ("GET", f"/v1/models/{'0' * 64}/archive"),
            ("PUT", f"/v1/uploads/7/{'0' * 64}"),
        ):  # fmt: skip
            async with session.request(method, f"http://{address}{path}", headers=shown) as answer:
                assert answer.status == 404, path
                assert "code" not in await answer.text(), "there is no such route"


def test_where_a_node_with_a_token_looks_first():
    door = DoorPeer(DoorAddress("http://127.0.0.1:1", "x"))
    first, second = NodePeer("a:1", "x", True, True), NodePeer("b:1", "y", False, True)
    found = among_peers([first, second], door)
    assert [source.name for source in found.sources] == ["peer a:1", "the control plane", "peer b:1"]
    assert set(found.receivers) == {"b:1"}, "who made it gives it anyway"
    found = among_peers([second], door)
    assert [source.name for source in found.sources] == ["the control plane", "peer b:1"]
    assert set(found.receivers) == {"b:1"}
    found = among_peers([second], door, of_run=False)
    assert [source.name for source in found.sources] == ["peer b:1", "the control plane"], "models lie on any"
