"""Every place of the state plane gives back what it took, whole, or says why not."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem

from workers.transfer import CorruptState, LocalTier, StateError, StateFull, StateMissing
from workers.transfer.contents import encode
from workers.transfer.objects import ObjectStore
from workers.transfer.peer import Peer
from workers.transfer.plane import DiskShelter, OwnMemory, Plane, Shelter, Ticket
from workers.transfer.shared import SharedMemory, sweep

MIB = 2**20


def _tensors(scale: float = 1.0, size: int = 500_000) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "first": torch.randn(size, generator=generator) * scale,
        "steps": torch.tensor([9]),
        "half": torch.randn(33, generator=generator).to(torch.bfloat16),
    }


def _same(found: dict[str, torch.Tensor], put: dict[str, torch.Tensor]) -> bool:
    return found.keys() == put.keys() and all(torch.equal(found[name], put[name]) for name in put)


@pytest.fixture(params=["process", "host_memory", "disk"])
def shelter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelter]:
    if request.param == "host_memory":
        memory = SharedMemory(tmp_path, 64 * MIB, tmp_path)
        yield memory
        memory.close()
    else:
        yield OwnMemory(64 * MIB) if request.param == "process" else DiskShelter(tmp_path, "suspended")


def test_a_suspended_state_is_resumed_bit_for_bit_until_it_is_let_go(shelter: Shelter):
    name, size = shelter.put(_tensors(), {"epoch": "3:a", "held": [1, 2]})
    assert size >= 2_000_000
    tensors, meta = shelter.get(name)
    assert _same(tensors, _tensors())
    assert meta == {"epoch": "3:a", "held": [1, 2]}
    room = {key: torch.zeros_like(tensor) for key, tensor in _tensors().items()}
    found, _ = shelter.get(name, room)
    assert found["first"] is room["first"]
    assert _same(room, _tensors())
    shelter.drop(name)
    shelter.drop(name)
    with pytest.raises(StateMissing):
        shelter.get(name)


def test_states_do_not_touch_each_other(shelter: Shelter):
    names = [shelter.put(_tensors(scale), {"scale": scale})[0] for scale in (1.0, 2.0, 3.0)]
    shelter.drop(names[1])
    names[1], _ = shelter.put(_tensors(4.0), {"scale": 4.0})
    for name, scale in zip(names, (1.0, 4.0, 3.0), strict=True):
        tensors, meta = shelter.get(name)
        assert meta == {"scale": scale}
        assert _same(tensors, _tensors(scale))


def test_memory_handed_over_is_not_copied():
    tensors = _tensors()
    own = OwnMemory(64 * MIB)
    found, _ = own.get(own.put(tensors, {})[0])
    assert found["first"].data_ptr() == tensors["first"].data_ptr()


def test_a_state_that_does_not_fit_goes_to_the_next_place(tmp_path: Path):
    memory = SharedMemory(tmp_path, 5 * MIB, tmp_path / "shm") if (tmp_path / "shm").mkdir() is None else None
    plane = Plane(LocalTier(tmp_path), [OwnMemory(3 * MIB), memory, DiskShelter(tmp_path, "suspended")])
    tickets = [plane.suspend(_tensors(scale), {"scale": scale}) for scale in (1.0, 2.0, 3.0, 4.0)]
    assert [ticket.place for ticket in tickets] == ["process", "host_memory", "host_memory", "disk"]
    for ticket, scale in zip(tickets, (1.0, 2.0, 3.0, 4.0), strict=True):
        assert _same(plane.resume(ticket)[0], _tensors(scale))
        plane.release(ticket)
    assert plane.suspend(_tensors(), {}).place == "process", "what was let go makes room"
    with pytest.raises(StateFull):
        Plane(LocalTier(tmp_path), [OwnMemory(1)]).suspend(_tensors())
    with pytest.raises(StateMissing):
        plane.resume(Ticket("elsewhere", "1", 1))
    memory.close()


def test_memory_of_a_state_that_is_gone_is_used_again_within_the_limit(tmp_path: Path):
    memory = SharedMemory(tmp_path, 5 * MIB, tmp_path)
    name, _ = memory.put(_tensors(), {})
    held = memory.held_bytes
    for scale in (2.0, 3.0):
        memory.drop(name)
        name, _ = memory.put(_tensors(scale), {})
        assert memory.held_bytes <= held + 4096
        assert _same(memory.get(name)[0], _tensors(scale))
    memory.drop(name)
    name, _ = memory.put(_tensors(size=1_200_000), {})  # nothing free fits: the free memory makes room for it
    assert _same(memory.get(name)[0], _tensors(size=1_200_000))
    memory.close()
    assert not list(tmp_path.glob("flexmarl-*/*"))


@pytest.mark.parametrize("harm", ["flip", "truncate", "manifest"])
def test_host_memory_that_was_harmed_is_refused(tmp_path: Path, harm: str):
    owner, reader = SharedMemory(tmp_path, 64 * MIB, tmp_path), SharedMemory(tmp_path, 64 * MIB, tmp_path)
    name, _ = owner.put(_tensors(), {})
    assert _same(reader.get(name)[0], _tensors()), "another process reads it"
    [payload] = tmp_path.glob(f"flexmarl-*/{name}.*.payload")
    if harm == "flip":
        content = bytearray(payload.read_bytes())
        content[1_700_000] ^= 1
        payload.write_bytes(content)
    elif harm == "truncate":
        os.truncate(payload, 1_000_000)
    else:
        next(payload.parent.glob("*.manifest")).write_bytes(b"{")
    with pytest.raises(CorruptState):
        reader.get(name)


def test_a_full_memory_file_system_is_told_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    memory = SharedMemory(tmp_path, 64 * MIB, tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StateFull):
            memory.put(_tensors(), {})
    assert [path.suffix for path in tmp_path.glob("flexmarl-*/*")] in ([], [".alive"])


KILLED = """
import sys, torch
from pathlib import Path
from workers.transfer.shared import SharedMemory
memory = SharedMemory(sys.argv[1], 1 << 28, Path(sys.argv[1]))
print(memory.put({"x": torch.ones(1000)}, {})[0], flush=True)
while True:
    name, _ = memory.put({"x": torch.rand(1 << 22)}, {})
    memory.drop(name)
"""


def test_states_go_with_their_owner_killed_in_mid_write(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    name = process.stdout.readline().strip()
    reader = SharedMemory(tmp_path, 64 * MIB, tmp_path)
    assert torch.equal(reader.get(name)[0]["x"], torch.ones(1000)), "a living owner's state is there for all"
    process.send_signal(signal.SIGKILL)
    process.wait()
    next(tmp_path.glob("flexmarl-*")).joinpath("foreign").touch()  # not ours, not touched
    sweep(tmp_path, tmp_path)
    next(tmp_path.glob("flexmarl-*/foreign")).unlink()
    with pytest.raises(StateMissing):
        reader.get(name)
    assert not list(tmp_path.glob("flexmarl-*/*"))


def test_a_living_owner_is_known_by_its_lock_and_not_by_its_process_id(tmp_path: Path, monkeypatch):
    """Containers may share host memory and not their process ids."""
    memory = SharedMemory(tmp_path, 64 * MIB, tmp_path)
    name, _ = memory.put(_tensors(), {})
    monkeypatch.setattr("os.getpid", lambda: 4_000_000)
    SharedMemory(tmp_path, 64 * MIB, tmp_path)
    sweep(tmp_path, tmp_path)
    assert _same(memory.get(name)[0], _tensors())
    memory.close()
    assert not list(tmp_path.glob("flexmarl-*"))


# Contents from elsewhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_an_object_store_keeps_contents_that_any_node_brings(tmp_path: Path, kind: str):
    url = f"file://{tmp_path}/bucket" if kind == "file" else f"memory://{tmp_path.name}"
    first = Plane(LocalTier(tmp_path / "one"), copies=[ObjectStore(url)])
    digest = first.put(_tensors(), {"kind": "weights"}).digest
    second = Plane(LocalTier(tmp_path / "two", "run-1"), sources=[ObjectStore(url)])
    assert second.locate(digest).path.startswith("object storage")
    assert _same(second.get(digest), _tensors())
    assert second.meta(digest) == {"kind": "weights"}
    assert second.locate(digest).path.startswith(str(tmp_path / "two"))
    with pytest.raises(StateMissing):
        second.get("0" * 64)


@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
def test_what_an_object_store_lost_is_refused_brought_from_elsewhere_and_healed(tmp_path: Path, harm: str):
    system, root = fsspec.filesystem("file"), f"{tmp_path}/bucket"
    store, other = ObjectStore(f"file://{root}"), ObjectStore(f"file://{tmp_path}/other")
    encoded = encode(_tensors(), chunk_bytes=MIB)
    store.store(encoded)
    other.store(encoded)
    path = f"{root}/chunks/{encoded.description.chunks[1]}"
    body = bytearray(system.cat_file(path))
    body[17] ^= 1
    if harm == "gone":
        system.rm_file(path)
    else:
        system.pipe_file(path, bytes(body if harm == "flip" else body[:-1]))
    with pytest.raises(StateMissing if harm == "gone" else CorruptState):
        Plane(LocalTier(tmp_path / "a"), sources=[store]).get(encoded.digest)
    assert LocalTier(tmp_path / "a").locate(encoded.digest) is None, "never half there"
    assert _same(Plane(LocalTier(tmp_path / "a"), sources=[store, other]).get(encoded.digest), _tensors())
    if harm != "flip":  # a store is trusted on lengths only: who fetches finds the rest
        store.store(encoded)
        assert _same(Plane(LocalTier(tmp_path / "b"), sources=[store]).get(encoded.digest), _tensors())


def test_a_file_of_an_object_store_is_written_under_another_name_than_readers_look_for(tmp_path: Path, monkeypatch):
    written, opened = [], LocalFileSystem._open

    def recorded(self: LocalFileSystem, path: str, mode: str = "rb", **options: object) -> object:
        if "w" in mode:
            written.append(path)
        return opened(self, path, mode, **options)

    monkeypatch.setattr(LocalFileSystem, "_open", recorded)
    store = ObjectStore(f"file://{tmp_path}/bucket")
    store.belongs_to("this one")
    encoded = encode(_tensors(), chunk_bytes=MIB)
    store.store(encoded)
    assert len(written) == 2 + len(encoded.pieces)
    assert [path for path in written if not path.endswith(".part")] == []
    assert store.whole() == {encoded.digest}
    assert not list(tmp_path.rglob("*.part"))


def test_manifests_that_were_cut_short_count_as_none_and_are_written_anew(tmp_path: Path):
    """As a writer leaves them whose host loses power: nobody may be held up by them."""
    root = tmp_path / "bucket"
    store = ObjectStore(f"file://{root}")
    kept, cut = (encode(_tensors(scale), chunk_bytes=MIB) for scale in (1.0, 2.0))
    for encoded in (kept, cut):
        store.store(encoded)
    (root / f"{cut.digest}.manifest").write_bytes(b"")
    (root / "chunks" / "left.part").write_bytes(b"half")
    assert store.whole() == {kept.digest}
    assert store.collect({kept.digest, cut.digest}, 60.0) == [], "it may be as old as the put that mends it"
    store.store(cut)
    assert store.whole() == {kept.digest, cut.digest}
    (root / f"{cut.digest}.manifest").write_bytes(b"")
    assert store.collect({kept.digest, cut.digest}, -1.0) == [cut.digest]
    assert store.whole() == {kept.digest}
    assert {path.name for path in (root / "chunks").iterdir()} == set(kept.description.chunks)


class Breaking(BaseHTTPRequestHandler):
    """A peer on a bad line: it sends so many bytes in all and hangs up, so many times."""

    tier: LocalTier
    asked: list[tuple[str, str]]
    breaks: list[int]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.asked.append((self.path.rsplit("/", 1)[1][:6], wanted))
        if self.headers["Authorization"] != "Bearer key":
            self.send_error(401)
            return
        name = urlsplit(self.path).path.rsplit("/", 1)[1]
        body = self.tier.chunk(name).read_bytes() if "/chunks/" in self.path else self.tier.manifest(name)
        start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        limit = self.breaks.pop(0) if self.breaks and "/chunks/" in self.path else len(body)
        self.wfile.write(body[start : start + limit])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def line(tmp_path: Path) -> Iterator[tuple[LocalTier, type[Breaking], str]]:
    handler = type("Line", (Breaking,), {"tier": LocalTier(tmp_path / "peer"), "asked": [], "breaks": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield handler.tier, handler, f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_transfer_that_breaks_off_goes_on_at_its_byte(line: tuple, tmp_path: Path):
    tier, handler, address = line
    encoded = encode({"x": torch.rand(1000)}, chunk_bytes=8192)
    tier.store(encoded)
    handler.breaks[:] = [1500, 700]
    plane = Plane(LocalTier(tmp_path / "own"), sources=[Peer(address, "key")])
    assert plane.get(encoded.digest).keys() == {"x"}
    assert [wanted for _, wanted in handler.asked] == ["", "", "bytes=1500-", "bytes=2200-"]


def test_a_transfer_given_up_goes_on_at_its_chunk_even_by_another_process(line: tuple, tmp_path: Path):
    tier, handler, address = line
    encoded = encode({"x": torch.rand(3000)}, chunk_bytes=4096)
    tier.store(encoded)
    last = encoded.description.chunks[-1]
    tier.chunk(last).rename(tmp_path / "away")
    with pytest.raises(StateError):
        Plane(LocalTier(tmp_path / "own"), sources=[Peer(address, "key")]).get(encoded.digest)
    assert LocalTier(tmp_path / "own").locate(encoded.digest) is None
    (tmp_path / "away").rename(tier.chunk(last))
    handler.asked.clear()
    again = Plane(LocalTier(tmp_path / "own", "later"), sources=[Peer(address, "key")])
    assert torch.equal(again.get(encoded.digest)["x"], tier.get(encoded.digest)["x"])
    assert [name for name, _ in handler.asked] == [encoded.digest[:6], last[:6]], "the others were there"


def test_a_silent_or_foreign_peer_is_told_and_the_next_one_asked(line: tuple, tmp_path: Path):
    tier, handler, address = line
    digest = tier.put({"x": torch.rand(100)}).digest
    with pytest.raises(StateError, match="401"):
        Plane(LocalTier(tmp_path / "own"), sources=[Peer(address, "other")]).get(digest)
    handler.breaks[:] = [0, 0, 0]
    with pytest.raises(StateError, match="broke off"):
        Plane(LocalTier(tmp_path / "own"), sources=[Peer(address, "key")]).get(digest)
    gone = Peer("127.0.0.1:9", "key")
    assert Plane(LocalTier(tmp_path / "own"), sources=[gone, Peer(address, "key")]).get(digest).keys() == {"x"}


def test_a_damaged_content_is_brought_anew(line: tuple, tmp_path: Path):
    tier, _, address = line
    digest = tier.put({"x": torch.rand(100)}).digest
    own = tmp_path / "own"
    Plane(LocalTier(own), sources=[Peer(address, "key")]).get(digest)
    for harmed in [*(own / "state").glob("*.chunk"), *(own / "state").glob("*.manifest")]:
        harmed.write_bytes(harmed.read_bytes()[:-1])
        plane = Plane(LocalTier(own), sources=[Peer(address, "key")])
        assert torch.equal(plane.get(digest)["x"], tier.get(digest)["x"])


RECEIVER = """
import sys
from workers.transfer import LocalTier
from workers.transfer.peer import Peer
from workers.transfer.plane import Plane
print("ready", flush=True)
Plane(LocalTier(sys.argv[1]), sources=[Peer(sys.argv[2], "key")]).get(sys.argv[3])
"""


@pytest.mark.slow
def test_a_receiver_killed_in_mid_transfer_leaves_nothing_that_looks_whole(line: tuple, tmp_path: Path):
    tier, handler, address = line
    encoded = encode({"x": torch.rand(1 << 20)}, chunk_bytes=4096)
    tier.store(encoded)
    own = tmp_path / "own"
    receiver = subprocess.Popen([sys.executable, "-c", RECEIVER, str(own), address, encoded.digest])
    while len(list((own / "state").glob("*.chunk"))) < 20:
        assert receiver.poll() is None
    receiver.send_signal(signal.SIGKILL)
    receiver.wait()
    assert LocalTier(own).locate(encoded.digest) is None
    before = len(list((own / "state").glob("*.chunk")))
    handler.asked.clear()
    found = Plane(LocalTier(own), sources=[Peer(address, "key")]).get(encoded.digest)
    assert torch.equal(found["x"], tier.get(encoded.digest)["x"])
    assert len(handler.asked) <= 1 + 1024 - before
