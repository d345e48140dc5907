"""What is sent to a node is kept bit for bit, once, under the names of its run; nothing sent is trusted.

The sender speaks straight to the routes of a real node agent, as the control plane passes its requests on.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from aiohttp import ClientSession
from blake3 import blake3

from flexmarl.contracts.commands import WriteCheckpoint
from flexmarl.contracts.wire import PolicyPin
from flexmarl.host.disk import DiskSpace
from tests.unit.workers.test_node_bringing import settings
from workers.door.address import DoorAddress
from workers.door.client import DoorAway
from workers.door.sending import KeeperGone, Parcel, Sending, SendingRefused
from workers.errors import ChildRefused
from workers.nodes import publishing
from workers.nodes.agent import NodeAgent
from workers.nodes.folder_contents import encoded_folder
from workers.nodes.publishing import Publishing
from workers.training.folders import Inspector, write_manifest
from workers.training.version_store import RESTORABLE
from workers.training.wire import CheckpointReply, StepReply
from workers.transfer import LocalTier, StateFull, receiving
from workers.transfer.contents import CHUNK_BYTES, Encoded, encode, encode_files
from workers.transfer.receiving import OWNER, ContentTooLarge, Receiving

RUN = 7
KEY = {"Authorization": "Bearer key"}
LARGE = 5_000_000
"""Numbers of a content of three chunks."""


class Straight(Sending):
    """Sends to a node's own routes, with the cluster key; may be told to fail."""

    def __init__(self, address: str, key: str = "key") -> None:
        super().__init__(DoorAddress(f"http://{address}", key))
        self.asked: list[str] = []
        self.failing: list[Exception] = []
        self.bytes = 0

    def _asked(self, path: str, body: bytes | bytearray, method: str = "POST", kind: str = "") -> tuple[int, bytes]:
        self.asked.append(path)
        self.bytes += len(body)
        if self.failing:
            raise self.failing.pop(0)
        return super()._asked(path.replace("/nodes/contents/", "/v1/uploads/"), body, method, kind)

    @property
    def chunks(self) -> int:
        return sum("/chunks/" in path for path in self.asked)


@asynccontextmanager
async def keeper(home: Path) -> AsyncIterator[Straight]:
    agent = NodeAgent(settings(home), None, [], "a")  # type: ignore[arg-type]
    async with ClientSession() as session, agent._endpoint.serving(session) as port:
        yield Straight(f"127.0.0.1:{port}")


def parcel(encoded: Encoded, keep: str = "version") -> Parcel:
    return Parcel(
        encoded.digest, encoded.manifest, encoded.description, lambda number: b"".join(encoded.pieces[number]),
        {"policy": "solver", "keep": keep},
    )  # fmt: skip


def checkpoint(root: Path, **about: object) -> Path:
    """Make the folder of an adapter and its base, as a trainer writes it."""
    folder = root / "checkpoints" / f"run-{RUN}" / "step-2"
    for name, text in {
        "solver/adapter_config.json": json.dumps({"base_model_name_or_path": str(folder / "base-0"), "r": 2}),
        "solver/adapter_model.safetensors": "x" * 1000,
        "base-0/model.safetensors": "y" * 3000,
        "base-0/empty.txt": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_manifest(folder, {"run": RUN, "step": 2, "digests": {"solver": "0" * 64}, **about})
    return folder


async def put(sender: Straight, path: str, body: bytes, **headers: str) -> tuple[int, str]:
    """Ask a route as a sender of no manners would."""
    url = f"{sender._address.url}/v1/uploads/{path}"
    async with ClientSession() as session, session.put(url, data=body, headers={**KEY, **headers}) as answer:
        return answer.status, (await answer.json())["code"] if answer.status != 200 else ""


async def test_what_is_sent_is_kept_once_and_bit_for_bit(tmp_path: Path) -> None:
    here = LocalTier(tmp_path / "b", "reader")
    first = torch.rand(LARGE)
    one = encode({"w": first}, {"kind": "weights"})
    changed = first.clone()
    changed[10] += 1
    two = encode({"w": changed}, {"kind": "weights"})
    async with keeper(tmp_path / "b") as sender:
        assert await asyncio.to_thread(sender.send, RUN, parcel(one)) == ("b", first.nbytes)
        assert sender.chunks == 3
        assert await asyncio.to_thread(sender.send, RUN, parcel(one, "step-2")) == ("b", 0)
        assert await asyncio.to_thread(sender.send, RUN, parcel(two)) == ("b", CHUNK_BYTES), "only what changed goes"
    assert torch.equal(here.get(one.digest)["w"], first)
    assert torch.equal(here.get(two.digest)["w"], changed)
    assert set(LocalTier(tmp_path / "b", "run-7-solver").claims()) == {one.digest, two.digest}
    assert set(LocalTier(tmp_path / "b", "run-7-solver-step-2").claims()) == {one.digest}
    assert LocalTier(tmp_path / "b", OWNER).claims() == {}
    assert not list((tmp_path / "b" / "state").glob("*.intent"))


async def test_what_broke_off_goes_on_with_what_has_not_come(tmp_path: Path) -> None:
    content = encode({"w": torch.rand(LARGE)})
    [first, _, last] = content.description.chunks
    whole = parcel(content)
    async with keeper(tmp_path / "b") as sender:
        assert (await put(sender, f"{RUN}/{content.digest}?policy=solver&keep=version", content.manifest))[0] == 200
        half = f"PUT /v1/uploads/{RUN}/{content.digest}/chunks/{first} HTTP/1.1\r\nHost: x\r\n"
        half += f"Authorization: Bearer key\r\nContent-Length: {CHUNK_BYTES}\r\n\r\n"
        host, _, port = sender._address.url.removeprefix("http://").partition(":")
        _, cut = await asyncio.open_connection(host, int(port))
        cut.write(half.encode() + bytes(whole.read(0))[: CHUNK_BYTES // 2])
        await cut.drain()
        cut.close()
        assert not LocalTier(tmp_path / "b").chunk(first).exists()

        def read(number: int) -> bytes | bytearray:
            if number == 2:
                raise OSError("the process that sends ends here")
            return whole.read(number)

        with pytest.raises(OSError, match="ends here"):
            await asyncio.to_thread(sender.send, RUN, replace(whole, read=read))
        assert LocalTier(tmp_path / "b").locate(content.digest) is None, "nothing looks whole that is not"
        sender.asked.clear()
        await asyncio.to_thread(sender.send, RUN, whole)
        assert [path for path in sender.asked if "/chunks/" in path] == [
            f"/nodes/contents/{RUN}/{content.digest}/chunks/{last}?keeper=b"
        ]
    assert LocalTier(tmp_path / "b").locate(content.digest) is not None


async def test_nothing_sent_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode({"w": torch.rand(1000)})
    [chunk] = content.description.chunks
    body, start = parcel(content).read(0), f"{RUN}/{content.digest}"
    async with keeper(tmp_path / "b") as sender:
        assert (await put(sender, f"{start}/chunks/{chunk}", body)) == (409, "not_expected")
        begin = f"{start}?policy=solver&keep=version"
        assert (await put(sender, begin, content.manifest + b" ")) == (422, "state_corrupt")
        for keep in ("", "step-x", "version/..", "step-1/../../x"):
            assert (await put(sender, f"{start}?policy=solver&keep={keep}", content.manifest))[0] == 422, keep
        for policy in ("", "../x", "a/b", "A"):
            assert (await put(sender, f"{start}?policy={policy}&keep=version", content.manifest))[0] == 422, policy
        assert (await put(sender, begin, content.manifest, Authorization="Bearer fmn_x")) == (401, "unauthorized")
        assert (await put(sender, begin, content.manifest))[0] == 200
        assert (await put(sender, f"{start}/chunks/{'0' * 64}", body)) == (409, "not_expected")
        assert (await put(sender, f"8/{content.digest}/chunks/{chunk}", body)) == (409, "not_expected"), "another run's"
        assert (await put(sender, f"{start}/chunks/{chunk}", body[:-1])) == (422, "state_corrupt")
        assert (await put(sender, f"{start}/chunks/{chunk}", bytes(len(body)))) == (422, "state_corrupt")
        assert (await put(sender, f"{start}/chunks/{chunk}", bytes(CHUNK_BYTES + 1))) == (413, "too_large")
        assert not LocalTier(tmp_path / "b").chunk(chunk).exists()
        monkeypatch.setattr(receiving, "space", lambda _: DiskSpace(600 * 2**20, 2**40, 10**6))
        assert (await put(sender, f"{start}/chunks/{chunk}", body))[0] == 200
        large = encode({"w": torch.zeros(30_000_000)})
        with pytest.raises(StateFull, match="no room for 114 MiB more"):
            await asyncio.to_thread(sender.send, RUN, parcel(large))
        assert sender.chunks == 0, "room is looked at before a chunk is asked for"


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told | {"chunk_bytes": 2**40},
        lambda told: told | {"bytes": -1},
        lambda told: told | {"bytes": told["bytes"] + CHUNK_BYTES},
        lambda told: told | {"chunks": ["../../etc/passwd"]},
        lambda told: told | {"sums": ["x", "y"]},
        lambda told: told | {"tensors": [["w", "float32", [1000], 2**50]]},
        lambda told: told | {"tensors": [["w", "float32", [-5], 0]]},
    ],
)
def test_a_manifest_whose_numbers_do_not_fit_is_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    made = json.dumps(change(json.loads(encode({"w": torch.rand(1000)}).manifest))).encode()
    with pytest.raises(receiving.CorruptState, match="do not fit"):
        Receiving(tmp_path).begin(RUN, blake3(made).hexdigest(), made, "run-7-solver")


def test_a_content_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "LARGEST_BYTES", 3999)
    content = encode({"w": torch.rand(1000)})
    with pytest.raises(ContentTooLarge, match="at most 3999 bytes"):
        Receiving(tmp_path).begin(RUN, content.digest, content.manifest)


def test_silent_senders_are_given_up_and_what_came_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, tier = Receiving(tmp_path), LocalTier(tmp_path, "other")
    content = encode({"w": torch.rand(LARGE)})
    name = content.description.chunks[0]
    assert len(receiver.begin(RUN, content.digest, content.manifest, "run-7-solver")) == 3
    receiver.take(RUN, content.digest, name, content.pieces[0][0])
    receiver.tend()
    tier.collect((), 0.0)
    assert tier.chunk(name).exists(), "its sender may speak at any time"
    monkeypatch.setattr(receiving, "OPEN_S", 0.0)
    receiver.tend()
    tier.collect((), 0.0)
    assert not tier.chunk(name).exists()
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]


def test_old_versions_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = LocalTier(tmp_path, "run-7-solver")
    digests = [tier.put({"w": torch.full((8,), number)}).digest for number in range(20)]
    Receiving(tmp_path).trim("run-7-solver")
    assert list(tier.claims()) == digests[-12:]
    monkeypatch.setattr(receiving, "NEWEST_BYTES", 0)
    Receiving(tmp_path).trim("run-7-solver")
    assert list(tier.claims()) == digests[-4:]


async def test_a_checkpoint_s_folder_is_laid_down_where_it_names_itself(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    content = encoded_folder(folder)
    async with keeper(tmp_path / "b") as sender:
        for _ in range(2):  # an answer that was lost is asked for again
            name, _ = await asyncio.to_thread(sender.send, RUN, parcel(content, "folder"))
            path, size = await asyncio.to_thread(sender.lay_down, RUN, content.digest, 2, name)
        await asyncio.to_thread(sender.send, RUN, parcel(content, "folder"))
        with pytest.raises(SendingRefused) as foreign:
            await asyncio.to_thread(sender.lay_down, RUN, content.digest, 3, name)
        assert foreign.value.code == "state_corrupt"
    laid = tmp_path / "b" / "checkpoints" / f"run-{RUN}" / "step-2"
    assert (path, Inspector().look(laid)) == (str(laid), None)
    assert size == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    told = json.loads((laid / "solver" / "adapter_config.json").read_text())
    assert told == {"base_model_name_or_path": str(laid / "base-0"), "r": 2}
    assert (laid / "base-0" / "model.safetensors").read_text() == "y" * 3000
    assert [each.name for each in laid.parent.iterdir()] == ["step-2"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "solver/../../x", ".made/x", "solver//x", "a/b/c/d/e/f/g", "x\n"])
async def test_no_file_leaves_its_folder(tmp_path: Path, name: str) -> None:
    content = encode_files({name: memoryview(b"abc")}, {"kind": "folder"})
    async with keeper(tmp_path / "b") as sender:
        where, _ = await asyncio.to_thread(sender.send, RUN, parcel(content, "folder"))
        with pytest.raises(SendingRefused, match="no file that a checkpoint may have"):
            await asyncio.to_thread(sender.lay_down, RUN, content.digest, 2, where)
    assert not list((tmp_path / "b" / "checkpoints").rglob("*x*"))


async def test_a_content_that_is_no_folder_or_a_damaged_one_is_not_laid_down(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    (folder / "base-0" / "model.safetensors").write_text("z" * 3000)
    async with keeper(tmp_path / "b") as sender:
        for content, why in ((encoded_folder(folder), "not what was written"), (encode({}), "no folder")):
            name, _ = await asyncio.to_thread(sender.send, RUN, parcel(content, "folder"))
            with pytest.raises(SendingRefused, match=why):
                await asyncio.to_thread(sender.lay_down, RUN, content.digest, 2, name)
    assert not list((tmp_path / "b").glob("checkpoints/*/step-2"))


# Publishing ---------------------------------------------------------------------------------------------------------


class Told:
    """A taken command as far as publishing looks at it."""

    run_id = RUN

    def __init__(self, command: object) -> None:
        self.command = command


def publisher(home: Path, sender: Straight, elsewhere: str = "auto") -> Publishing:
    async def store(_: object) -> Any:
        return elsewhere

    made = Publishing(settings(home), store)
    made._sending = sender
    return made


def stepped(digest: str) -> StepReply:
    return StepReply(1, digest, "", False, 0.0, 0.0)


class Order:
    policy = "solver"


async def test_a_version_is_told_when_engines_elsewhere_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "AGAIN_S", 0.0)
    here, there = LocalTier(tmp_path / "a", "run-7-solver"), LocalTier(tmp_path / "b")
    base = here.put({"w": torch.rand(9)}, {"kind": "base"}).digest
    digest = here.put({"w": torch.rand(9)}, {"kind": "weights", "base": base}).digest
    async with keeper(tmp_path / "b") as sender:
        reply = stepped(digest)
        assert await publisher(tmp_path / "a", sender, elsewhere="")(Told(Order()), reply) is reply  # type: ignore[arg-type]
        assert there.locate(digest) is None
        sender.failing = [DoorAway("away"), KeeperGone("gone"), DoorAway("away")]
        assert await publisher(tmp_path / "a", sender)(Told(Order()), reply) is reply  # type: ignore[arg-type]
        assert (there.locate(digest), there.locate(base)) != (None, None)
        assert set(LocalTier(tmp_path / "b", "run-7-solver-base").claims()) == {base}
        sender.failing = [StateFull("", "no room")]
        with pytest.raises(ChildRefused) as full:
            await publisher(tmp_path / "a", sender)(Told(Order()), reply)  # type: ignore[arg-type]
        assert full.value.code == "state_full", "the run says that it waits for space"


async def test_what_a_temporary_home_makes_is_told_once_it_lies_elsewhere(tmp_path: Path) -> None:
    here, there = LocalTier(tmp_path / "a", "run-7-solver"), LocalTier(tmp_path / "b")
    states = []
    async with keeper(tmp_path / "b") as sender:
        publish = publisher(tmp_path / "a", sender)
        publish._temporary = True
        for version in range(6):
            weights, state, behind = (here.put({"w": torch.rand(9)}, {"kind": kind}).digest for kind in "wsb")
            reply = msgspec.structs.replace(stepped(weights), state=state, durable={version - 1: behind})
            assert await publish(Told(Order()), reply) is reply  # type: ignore[arg-type]
            assert all(there.locate(digest) for digest in (weights, state, behind))
            states += [behind, state]
    kept = LocalTier(tmp_path / "b", "run-7-solver-state").claims()
    assert set(kept) == set(states[-RESTORABLE:]), "older ones are let go"


@pytest.mark.parametrize(("content", "whole"), [("auto", False), ("full", True)])
async def test_a_version_goes_as_a_delta_where_that_is_shorter(tmp_path: Path, content: str, whole: bool) -> None:
    here, there = LocalTier(tmp_path / "a", "run-7-solver"), LocalTier(tmp_path / "b")
    weights = torch.rand(8_000_000).to(torch.bfloat16)
    async with keeper(tmp_path / "b") as sender:
        publish = publisher(tmp_path / "a", sender, content)
        for step in range(3):
            weights[step::1000] += 1
            digest = here.put({"w": weights}, {"kind": "weights"}).digest
            sender.bytes = 0
            await publish(Told(Order()), stepped(digest))  # type: ignore[arg-type]
            assert torch.equal(there.get(digest)["w"], weights)
            assert (sender.bytes < 0.05 * 2 * len(weights)) == (step > 0 and not whole)
    assert LocalTier(tmp_path / "b", OWNER).claims() == {}, "deltas have gone"


async def test_a_delta_that_makes_something_else_makes_nothing(tmp_path: Path) -> None:
    first, second = torch.rand(LARGE), torch.rand(LARGE)
    base, content = encode({"w": first}), encode({"w": second})
    async with keeper(tmp_path / "b") as sender:
        await asyncio.to_thread(sender.send, RUN, parcel(base))
        wrong = encode(
            {"0": torch.zeros(40, dtype=torch.uint8)}, {"kind": "delta", "over": base.digest, "makes": content.digest}
        )
        shortcut = replace(parcel(content), shortcut=lambda missing: parcel(wrong, "delta"))
        await asyncio.to_thread(sender.send, RUN, shortcut)
    assert torch.equal(LocalTier(tmp_path / "b").get(content.digest)["w"], second), "its chunks were sent then"


async def test_a_checkpoint_is_told_as_its_keeper_s_and_leaves_this_disk(tmp_path: Path) -> None:
    here = LocalTier(tmp_path / "a", "run-7-solver-step-2")
    weights, state = (here.put({"w": torch.rand(9)}, {"kind": kind}).digest for kind in ("weights", "training_state"))
    folder = checkpoint(tmp_path / "a", digests={"solver": weights})
    order = WriteCheckpoint(
        lease_id=1, label="step", step=2, pins={"solver": PolicyPin(version=2, digest=weights)}
    )  # fmt: skip
    async with keeper(tmp_path / "b") as sender:
        publish = publisher(tmp_path / "a", sender)
        reply = await publish(Told(order), CheckpointReply(str(folder), 9, {"solver": state}))  # type: ignore[arg-type]
        assert isinstance(reply, CheckpointReply)
        assert (reply.kept_on, reply.path) == ("b", str(tmp_path / "b" / "checkpoints" / f"run-{RUN}" / "step-2"))
        holder = LocalTier(tmp_path / "b", "run-7-solver-step-2")
        assert set(holder.claims()) == {weights, state}, "they go with the checkpoint"

        async def elsewhere(_: object) -> list[tuple[int, int]]:
            return [(RUN, 2)]

        publish._store = elsewhere
        await publish.tend()
        assert not folder.exists()
        assert here.claims() == {}
        with pytest.raises(ChildRefused) as gone:
            await publish(Told(order), CheckpointReply(str(folder), 9, {}))  # type: ignore[arg-type]
        assert gone.value.code in {"state_missing", "checkpoint_leaving"}
