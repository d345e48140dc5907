"""A host that has one version receives what makes the next of it, exactly; whatever is wrong with that, it gets all."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from aiohttp import web

from tests.support.machine import wait_for
from workers.transfer import LocalTier, StateFull
from workers.transfer.contents import encode
from workers.transfer.deltas import Deltas, delta_between, guess
from workers.transfer.peer import Peer, StateRoutes
from workers.transfer.plane import Plane

pytestmark = pytest.mark.slow

SIZE = 6_000_000


def version(number: int, dtype: torch.dtype = torch.bfloat16, moved: float = 1e-6) -> dict[str, torch.Tensor]:
    """Weights that a small learning rate moved so many times."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(SIZE, generator=generator) * 0.02
    for _ in range(number):
        weights += moved * torch.randn(SIZE, generator=generator).sign()
    return {"a": weights[: SIZE // 3].to(dtype), "b": weights[SIZE // 3 :].view(1000, -1).to(dtype)}


@dataclass
class Node:
    """What a node serves to others, with what it was asked for."""

    home: Path
    address: str = ""
    pause_s: float = 0.0
    """Before each chunk."""
    asked: list[str] = field(default_factory=list)
    sent: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def tier(self) -> LocalTier:
        return LocalTier(self.home, "trainer")

    def serve(self, ready: threading.Event) -> None:
        asyncio.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        routes, app = StateRoutes(self.home), web.Application(middlewares=[self._noting])
        app.add_routes([web.get("/v1/state/{digest}", routes.manifest)])
        app.add_routes([web.get("/v1/state/{digest}/delta", routes.delta)])
        app.add_routes([web.get("/v1/state/chunks/{name}", routes.chunk)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address = "{}:{}".format(*runner.addresses[0])
        ready.set()
        await asyncio.to_thread(self.stop.wait)
        await runner.cleanup()

    @web.middleware
    async def _noting(self, request: web.Request, handler: object) -> web.StreamResponse:
        self.asked.append(request.path)
        if "/chunks/" in request.path:
            await asyncio.sleep(self.pause_s)
            chunk = self.tier.chunk(request.match_info["name"])
            self.sent += chunk.stat().st_size if chunk.exists() else 0
        return await handler(request)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made, ready = Node(tmp_path / "there"), threading.Event()
    thread = threading.Thread(target=made.serve, args=(ready,))
    thread.start()
    assert ready.wait(60)
    yield made
    made.stop.set()
    thread.join()


def receiver(home: Path, node: Node) -> Plane:
    return Plane(LocalTier(home, "brought"), sources=[Peer(node.address, "key")])


def both(node: Node, **kind: object) -> tuple[str, str]:
    """Put two versions where they are made; return their digests."""
    return node.tier.put(version(0, **kind)).digest, node.tier.put(version(1, **kind)).digest


def whole(home: Path, digest: str, node: Node) -> bool:
    found, put = LocalTier(home, "reader").get(digest), node.tier.get(digest)
    return found.keys() == put.keys() and all(torch.equal(found[name], put[name]) for name in put)


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.1), (torch.float32, 0.6)])
def test_who_has_a_version_receives_what_changed(node: Node, tmp_path: Path, dtype: torch.dtype, most: float):
    base, digest = both(node, dtype=dtype)
    here = receiver(tmp_path / "here", node)
    here.bring(base, 0.75)
    assert not any(path.endswith("/delta") for path in node.asked), "nothing is here that it could be made of"
    node.sent = 0
    size = here.bring(digest, 0.75).bytes
    assert whole(tmp_path / "here", digest, node)
    assert node.sent <= most * size
    tier = LocalTier(tmp_path / "here", "brought")
    assert set(tier.claims()) == {base, digest}, "the delta went when it had done its work"


def test_the_same_delta_serves_everybody_who_has_that_base(node: Node, tmp_path: Path):
    base, digest = both(node)
    for name in ("one", "two"):
        receiver(tmp_path / name, node).bring(base)
        receiver(tmp_path / name, node).bring(digest, 0.75)
    chunks = [path for path in node.asked if "/chunks/" in path]
    assert len(LocalTier(node.home, "deltas").claims()) == 1
    assert chunks.count(chunks[-1]) == 2


@pytest.mark.parametrize("kind", ["full", "far", "small", "other shapes"])
def test_the_whole_is_taken_where_a_delta_is_not_wanted_or_not_shorter(node: Node, tmp_path: Path, kind: str):
    base, digest = both(node, dtype=torch.float32, moved=1e-2 if kind == "far" else 1e-6)
    if kind == "small":
        base, digest = (node.tier.put({"w": version(number)["a"][:1_000_000]}).digest for number in (0, 1))
    if kind == "other shapes":
        base = node.tier.put({"b": version(0, dtype=torch.float32)["b"]}).digest
    here = receiver(tmp_path / "here", node)
    here.bring(base)
    node.sent = 0
    size = here.bring(digest, 0.0 if kind == "full" else 0.75).bytes
    assert whole(tmp_path / "here", digest, node)
    assert node.sent == size
    assert not LocalTier(node.home, "deltas").claims(), "none was made"


def test_a_few_looks_spare_the_work_of_a_delta_that_does_not_pay(node: Node, monkeypatch: pytest.MonkeyPatch):
    far = [node.tier.put(version(number, torch.float32, 1e-2)).digest for number in (0, 1)]
    near = [node.tier.put(version(number, torch.bfloat16, 1e-6)).digest for number in (0, 1)]
    assert guess(node.tier, *far) > 0.9
    assert guess(node.tier, *near) < 0.1
    assert delta_between(node.tier, *far, 1.0) is None, "it is no shorter than the whole"
    monkeypatch.setattr("workers.transfer.deltas.delta_between", None)
    assert Deltas(LocalTier(node.home, "deltas")).get(far[1], far[:1], 0.75) is None


@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_a_base_that_was_damaged_is_no_base(node: Node, tmp_path: Path, harm: str):
    base, digest = both(node)
    here = receiver(tmp_path / "here", node)
    here.bring(base)
    tier = LocalTier(tmp_path / "here", "brought")
    harmed = tier.chunk(tier.description(base).chunks[0])
    body = bytearray(harmed.read_bytes())
    body[1001] ^= 4
    harmed.write_bytes(bytes(body if harm == "flip" else body[:-2]))
    receiver(tmp_path / "here", node).bring(digest, 0.75)
    assert whole(tmp_path / "here", digest, node)


@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
def test_a_delta_that_comes_harmed_is_left(node: Node, tmp_path: Path, harm: str):
    base, digest = both(node)
    receiver(tmp_path / "first", node).bring(base)
    receiver(tmp_path / "first", node).bring(digest, 0.75)
    [delta] = LocalTier(node.home, "deltas").claims()
    path = node.tier.chunk(node.tier.description(delta).chunks[0])
    body = bytearray(path.read_bytes())
    body[5000] ^= 1
    path.unlink() if harm == "gone" else path.write_bytes(bytes(body if harm == "flip" else body[:-1]))
    here = receiver(tmp_path / "here", node)
    here.bring(base)
    node.sent = 0
    size = here.bring(digest, 0.75).bytes
    assert whole(tmp_path / "here", digest, node)
    assert node.sent >= size


@pytest.mark.parametrize("lie", ["over", "makes", "patches"])
def test_a_delta_that_says_what_is_not_so_changes_nothing(node: Node, tmp_path: Path, lie: str):
    base, digest = both(node)
    other = node.tier.put(version(7)).digest
    encoded = delta_between(node.tier, base, digest, 1.0)
    assert encoded is not None
    about = {"kind": "delta", "over": base, "makes": digest}
    patches = node.tier.get(node.tier.store(encoded).digest)
    if lie == "patches":
        false = delta_between(node.tier, base, other, 1.0)
        assert false is not None
        patches = node.tier.get(node.tier.store(false).digest)
    told = node.tier.put(patches, {**about, **({lie: other} if lie != "patches" else {})}).digest
    here = tmp_path / "here"
    for held in (base, other):
        receiver(here, node).bring(held)

    class Lying(Peer):
        def delta(self, *_: object) -> str:
            return told

    node.sent = 0
    brought = Plane(LocalTier(here, "brought"), sources=[Lying(node.address, "key")]).bring(digest, 1.0)
    assert whole(here, digest, node)
    assert node.sent >= brought.bytes, "each chunk was taken itself"


def test_a_full_disk_in_the_middle_leaves_nothing(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base, digest = both(node)
    here = receiver(tmp_path / "here", node)
    here.bring(base)
    kept = {path.name for path in (tmp_path / "here" / "state").glob("*.chunk")}
    write, room = os.writev, [2**20]

    def full(descriptor: int, pieces: list[memoryview]) -> int:
        if str(tmp_path / "here") in os.readlink(f"/proc/self/fd/{descriptor}"):
            room[0] -= sum(map(len, pieces))
            if room[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(StateFull):
            here.bring(digest, 0.75)
    assert LocalTier(tmp_path / "here", "reader").locate(digest) is None
    state = tmp_path / "here" / "state"
    assert not list(state.glob("*.writing"))
    held = {path.name for path in state.glob("*.chunk")} - kept
    assert sum((state / name).stat().st_size for name in held) <= 2**20, "what was made of the content went again"
    here.bring(digest, 0.75)
    assert whole(tmp_path / "here", digest, node)


RECEIVER = """
import sys
from workers.transfer import LocalTier
from workers.transfer.peer import Peer
from workers.transfer.plane import Plane
Plane(LocalTier(sys.argv[1], "brought"), sources=[Peer(sys.argv[2], "key")]).bring(sys.argv[3], 0.75)
"""


@pytest.mark.parametrize("asked", ["/delta", "/chunks/"])
def test_a_receiver_killed_in_the_middle_of_a_delta_leaves_nothing_that_looks_whole(
    node: Node, tmp_path: Path, asked: str
):
    base, digest = both(node)
    own = tmp_path / "own"
    receiver(own, node).bring(base)
    node.asked.clear()
    node.pause_s = 0.5
    process = subprocess.Popen([sys.executable, "-c", RECEIVER, str(own), node.address, digest])
    wait_for(lambda: any(asked in path for path in node.asked))
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert LocalTier(own).locate(digest) is None
    node.pause_s, node.sent = 0.0, 0
    size = receiver(own, node).bring(digest, 0.75).bytes
    assert whole(own, digest, node)
    assert node.sent < size / 5


def test_patches_are_over_chunks_that_changed_alone(tmp_path: Path):
    tier = LocalTier(tmp_path)
    old = version(0)
    new = {**old, "a": old["a"].clone()}
    new["a"][5] += 1
    digests = [tier.store(encode(each, chunk_bytes=2**20)).digest for each in (old, new)]
    made = delta_between(tier, *digests, 0.75)
    assert made is not None
    assert [entry.name for entry in made.description.tensors] == ["0"]
    assert made.description.bytes < 100
