"""A run fills no node with what it uploads, and one that no node stores anything for says so."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from aiohttp import web
from blake3 import blake3

from flexmarl.host.disk import DiskSpace
from tests.unit.workers.test_node_bringing import bring, settings
from tests.unit.workers.test_node_uploads import (
    RUN,
    Order,
    Straight,
    Told,
    checkpoint,
    keeper,
    parcel,
    publisher,
    put,
    stepped,
)
from workers.door.client import DoorAway
from workers.errors import ChildRefused
from workers.nodes import publishing
from workers.nodes.agent import NodeAgent
from workers.nodes.folder_contents import encoded_folder
from workers.nodes.lanes import RETRYABLE
from workers.nodes.receiving import UploadRoutes
from workers.rollout.engines.wire import LoadRequest
from workers.training.folders import write_manifest
from workers.transfer import LocalTier, StateFull, upload_quota
from workers.transfer.contents import decode, encode, encode_files
from workers.transfer.upload_quota import QuotaReached

MIB = 2**20


@pytest.fixture
def small_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run have 16 MiB on a node: a quarter of a small disk."""
    monkeypatch.setattr(upload_quota, "space", lambda _: DiskSpace(40 * MIB, 64 * MIB, 10**6))


def content(mib: int) -> torch.Tensor:
    return torch.rand(mib * MIB // 4)


async def test_a_run_s_checkpoints_fill_no_disk_whatever_they_are_called(tmp_path: Path, small_quota: None) -> None:
    async with keeper(tmp_path / "b") as sender:
        for step in range(3):
            await asyncio.to_thread(sender.send, RUN, parcel(encode({"w": content(5)}), f"step-{step}"))
        more = parcel(encode({"w": content(5)}), "step-9")
        sender.asked.clear()
        with pytest.raises(QuotaReached, match=r"run 7 has uploaded 15 MiB .* may have 16 MiB: no room for 5 MiB more"):
            await asyncio.to_thread(sender.send, RUN, more)
        assert sender.chunks == 0, "the quota is looked at before a chunk is asked for"
        assert await asyncio.to_thread(sender.send, RUN + 1, more) == ("b", 5 * MIB), "another run has its own"
        assert (await put(sender, f"{RUN}/{more.digest}?policy=solver&keep=step-9", more.manifest))[0] == 507
        holder = LocalTier(tmp_path / "b", "run-7-solver-step-0")
        [digest] = holder.claims()
        holder.evict(digest)
        assert (await asyncio.to_thread(sender.send, RUN, more))[1] == 0, "room again, and its chunks lie here"


async def test_what_nobody_claims_and_what_is_on_its_way_counts_as_well(tmp_path: Path, small_quota: None) -> None:
    async with keeper(tmp_path / "b") as sender:
        for _ in range(2):
            await asyncio.to_thread(sender.send, RUN, parcel(encode({"w": content(5)}), "folder"))
        begun = encode({"w": content(5)})
        assert (await put(sender, f"{RUN}/{begun.digest}?keep=delta", begun.manifest))[0] == 200
        with pytest.raises(QuotaReached, match="has uploaded 15 MiB"):
            await asyncio.to_thread(sender.send, RUN, parcel(encode({"w": content(2)})))


async def test_a_folder_counts_as_what_it_becomes_not_as_what_was_sent(tmp_path: Path, small_quota: None) -> None:
    sent = encode_files({"solver/0.bin": memoryview(bytes(MIB))}, {"kind": "folder", "place": "x"})
    told = json.loads(sent.manifest)
    [[_, *entry]] = told["tensors"]
    told["tensors"] = [[f"solver/{number}.bin", *entry] for number in range(24)]  # all of the same bytes
    manifest = json.dumps(told).encode()
    digest = blake3(manifest).hexdigest()
    many = replace(parcel(sent, "folder"), digest=digest, manifest=manifest, description=decode(digest, manifest))
    async with keeper(tmp_path / "b") as sender:
        where, _ = await asyncio.to_thread(sender.send, RUN, many)
        with pytest.raises(QuotaReached, match="no room for 24 MiB more"):
            await asyncio.to_thread(sender.lay_down, RUN, digest, 2, where)
    assert not list((tmp_path / "b" / "checkpoints").rglob("*.bin"))


async def test_a_checkpoint_s_folder_counts_once_it_is_laid_down(tmp_path: Path, small_quota: None) -> None:
    folder = checkpoint(tmp_path / "a")
    (folder / "solver" / "adapter_model.safetensors").write_bytes(bytes(6 * MIB))
    write_manifest(folder, {"run": RUN, "step": 2, "digests": {"solver": "0" * 64}})
    made = encoded_folder(folder)
    async with keeper(tmp_path / "b") as sender:
        where, _ = await asyncio.to_thread(sender.send, RUN, parcel(made, "folder"))
        await asyncio.to_thread(sender.lay_down, RUN, made.digest, 2, where)
        with pytest.raises(QuotaReached, match="has uploaded 6 MiB"):
            await asyncio.to_thread(sender.send, RUN, parcel(encode({"w": content(11)})))


async def test_versions_that_are_let_go_count_no_more(tmp_path: Path, small_quota: None) -> None:
    async with keeper(tmp_path / "b") as sender:
        for _ in range(20):
            await asyncio.to_thread(sender.send, RUN, parcel(encode({"w": content(1)})))
        assert len(LocalTier(tmp_path / "b", "run-7-solver").claims()) == 12


async def test_a_quota_that_is_set_holds_in_the_place_of_the_disk_s_share(tmp_path: Path, small_quota: None) -> None:
    agent = NodeAgent(replace(settings(tmp_path / "b"), upload_quota_gib=1), None, [], "a")  # type: ignore[arg-type]
    assert isinstance(agent._uploads, UploadRoutes)
    receiving = agent._uploads._receiving
    large = encode({"w": content(20)})
    assert len(receiving.begin(RUN, large.digest, large.manifest, "run-7-solver")) == 3
    receiving.close()


# A node that stores nothing ------------------------------------------------------------------------------------------


@asynccontextmanager
async def failing(status: int, code: str) -> AsyncIterator[Straight]:
    """The control plane, which has no node that stores anything; a status of 0: which does not answer."""

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"code": code, "detail": "box answers 500"}, status=status)

    app = web.Application()
    app.add_routes([web.put("/{path:.*}", refuse)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sender = Straight(f"127.0.0.1:{runner.addresses[0][1]}")
    if not status:
        await runner.cleanup()
    try:
        yield sender
    finally:
        await runner.cleanup()


def version(home: Path) -> str:
    return LocalTier(home, "run-7-solver").put({"w": torch.rand(9)}, {"kind": "weights"}).digest


@pytest.mark.parametrize(("status", "code"), [(503, "receiver_failed"), (503, "keeper_gone"), (503, "busy"), (500, "")])
async def test_a_publication_that_no_node_stores_is_given_up_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    monkeypatch.setattr(publishing, "AGAIN_S", 0.0)
    monkeypatch.setattr(publishing, "STALLED_S", 0.0)
    digest = version(tmp_path / "a")
    async with failing(status, code) as sender:
        with pytest.raises(ChildRefused, match="box answers 500") as given_up:
            await publisher(tmp_path / "a", sender)(Told(Order()), stepped(digest))  # type: ignore[arg-type]
        assert given_up.value.code == "upload_unavailable"
        assert len(sender.asked) == publishing.STALLED_ATTEMPTS
    assert {"upload_unavailable", QuotaReached.code} <= RETRYABLE, "the run waits, and tries again"


@pytest.mark.parametrize(("status", "code"), [(0, ""), (503, "database_away"), (502, "")])
async def test_a_control_plane_that_could_not_be_told_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    monkeypatch.setattr(publishing, "AGAIN_S", 0.0)
    monkeypatch.setattr(publishing, "STALLED_S", 0.0)
    small = encode({"w": torch.rand(9)})
    async with failing(status, code) as sender:
        with pytest.raises(DoorAway) as away:
            await asyncio.to_thread(sender.send, RUN, parcel(small))
    assert not isinstance(away.value, publishing.KeeperGone)
    digest = version(tmp_path / "a")
    async with keeper(tmp_path / "b") as sender:
        sender.failing = [away.value for _ in range(3 * publishing.STALLED_ATTEMPTS)]
        await publisher(tmp_path / "a", sender)(Told(Order()), stepped(digest))  # type: ignore[arg-type]
    assert LocalTier(tmp_path / "b").locate(digest) is not None


async def test_a_stall_lasts_a_while_before_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "AGAIN_S", 0.0)
    digest = version(tmp_path / "a")
    async with keeper(tmp_path / "b") as sender:
        sender.failing = [publishing.KeeperGone("gone") for _ in range(3 * publishing.STALLED_ATTEMPTS)]
        await publisher(tmp_path / "a", sender)(Told(Order()), stepped(digest))  # type: ignore[arg-type]
    assert LocalTier(tmp_path / "b").locate(digest) is not None


async def test_no_room_is_told_apart_from_a_quota(tmp_path: Path) -> None:
    digest = version(tmp_path / "a")
    for error, code in ((QuotaReached("", "run 7 has uploaded"), "upload_quota"), (StateFull("", "no"), "state_full")):
        async with keeper(tmp_path / "b") as sender:
            sender.failing = [DoorAway("away"), error]
            with pytest.raises(ChildRefused) as refused:
                await publisher(tmp_path / "a", sender)(Told(Order()), stepped(digest))  # type: ignore[arg-type]
            assert refused.value.code == code


# A second node that only has a token ---------------------------------------------------------------------------------


async def test_what_one_node_uploads_another_brings_bit_for_bit(tmp_path: Path) -> None:
    """Short form of two nodes with tokens, of which one trains and one serves; neither is reached."""
    weights = {"w": content(9)}
    digest = LocalTier(tmp_path / "maker", "run-7-solver").put(weights, {"kind": "weights"}).digest
    async with keeper(tmp_path / "b") as sender:
        await publisher(tmp_path / "maker", sender)(Told(Order()), stepped(digest))  # type: ignore[arg-type]
        stored = sender._address.url.removeprefix("http://")
        assert await bring(tmp_path / "server", [stored], LoadRequest("solver", 1, digest))
    came = LocalTier(tmp_path / "server").get(digest)
    assert came.keys() == weights.keys()
    assert torch.equal(came["w"], weights["w"])
