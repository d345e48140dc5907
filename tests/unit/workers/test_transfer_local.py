"""The local tier gives back what was put, whole, or nothing."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from blake3 import blake3

from tests.support.machine import wait_for
from workers.transfer import CorruptState, LocalTier, StateFull, StateMissing, files, local
from workers.transfer.contents import encode


def _tensors(scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "b.weight": torch.randn(7, 5, generator=generator) * scale,
        "a.bias": torch.arange(4, dtype=torch.float64),
        "step": torch.tensor([9], dtype=torch.int64),
    }


def test_tensors_come_back_with_type_shape_and_bits(tmp_path: Path):
    tier = LocalTier(tmp_path)
    manifest = tier.put(_tensors(), {"policy": "solver"})
    found = LocalTier(tmp_path, "reader").get(manifest.digest)
    assert found.keys() == _tensors().keys()
    for name, tensor in _tensors().items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert tier.meta(manifest.digest) == {"policy": "solver"}
    assert tier.locate(manifest.digest) == manifest
    assert manifest.bytes == 64 + 7 * 5 * 4 + 52 + 8  # each tensor begins at a multiple of 64


def test_every_type_and_shape_comes_back(tmp_path: Path):
    tensors = {
        "scalar": torch.tensor(3.5),
        "none": torch.empty(0, 3),
        "half": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
        "yes": torch.tensor([True, False]),
        "z": torch.empty(0),
    }
    tier = LocalTier(tmp_path)
    found = tier.get(tier.put(tensors).digest)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        name: (t.dtype, t.shape) for name, t in tensors.items()
    }
    assert all(found[n].numpy(force=True).tobytes() == tensors[n].numpy().tobytes() for n in ("scalar", "yes", "z"))
    assert torch.equal(found["half"].view(torch.int16), tensors["half"].view(torch.int16))
    assert tier.get(tier.put({}).digest) == {}


def test_memory_that_is_there_is_filled(tmp_path: Path):
    tier = LocalTier(tmp_path)
    digest = tier.store(encode(_tensors(), chunk_bytes=64)).digest
    room = {name: torch.zeros_like(tensor) for name, tensor in _tensors().items()}
    assert tier.get(digest, into=room)["b.weight"] is room["b.weight"]
    assert all(torch.equal(room[name], tensor) for name, tensor in _tensors().items())
    with pytest.raises(CorruptState, match="differ"):
        tier.get(digest, into={**room, "step": torch.zeros(1)})


def test_digest_depends_on_content_alone(tmp_path: Path):
    tier = LocalTier(tmp_path)
    tensors = _tensors()
    backwards = dict(reversed(tensors.items()))
    backwards["b.weight"] = tensors["b.weight"].t().contiguous().t()
    first = tier.put(tensors, {"x": 1, "y": 2})
    assert tier.put(backwards, {"y": 2, "x": 1}).digest == first.digest
    assert tier.put(_tensors(2.0), {"x": 1, "y": 2}).digest != first.digest
    assert tier.put(tensors, {"x": 1, "y": 3}).digest != first.digest


def test_digest_is_the_same_in_another_process(tmp_path: Path):
    code = (
        "import sys, torch; from workers.transfer import LocalTier;"
        "print(LocalTier(sys.argv[1]).put({k: torch.arange(3.0) for k in 'zyxwv'}, {'b': 1, 'a': [2]}).digest)"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "other")]
    other = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    tensors = {k: torch.arange(3.0) for k in "vwxyz"}
    assert LocalTier(tmp_path / "own").put(tensors, {"a": [2], "b": 1}).digest == other


def _chunks(home: Path) -> list[Path]:
    return sorted((home / "state").glob("*.chunk"))


@pytest.mark.parametrize("harm", ["truncate", "flip", "append", "empty"])
def test_harmed_chunk_is_refused_and_healed_by_the_next_put(tmp_path: Path, harm: str):
    encoded = encode(_tensors(), chunk_bytes=100)
    LocalTier(tmp_path).store(encoded)
    assert len(_chunks(tmp_path)) == 3
    path = tmp_path / "state" / f"{encoded.description.chunks[1]}.chunk"
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[-3] ^= 1
    damaged = {"truncate": content[:-1], "flip": content, "append": content + b"\0", "empty": b""}[harm]
    path.write_bytes(damaged)
    reader = LocalTier(tmp_path, "reader")
    with pytest.raises(CorruptState):
        reader.get(encoded.digest)
    reader.store(encoded)
    assert torch.equal(reader.get(encoded.digest)["step"], _tensors()["step"])


def test_harm_after_a_verified_read_is_seen(tmp_path: Path):
    tier = LocalTier(tmp_path)
    digest = tier.put(_tensors()).digest
    tier.get(digest)
    [chunk] = _chunks(tmp_path)
    content = bytearray(chunk.read_bytes())
    content[-1] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(CorruptState):
        tier.get(digest)


def test_a_chunk_that_is_stored_already_is_not_written_again(tmp_path: Path):
    tier = LocalTier(tmp_path)
    frozen = torch.arange(64.0)
    one = tier.store(encode({"a": frozen, "b": torch.zeros(64)}, chunk_bytes=256))
    before = {path.name: path.stat().st_ino for path in _chunks(tmp_path)}
    two = tier.store(encode({"a": frozen, "b": torch.ones(64)}, chunk_bytes=256))
    after = {path.name: path.stat().st_ino for path in _chunks(tmp_path)}
    assert len(before) == 2
    assert len(after) == 3
    assert {name: after[name] for name in before} == before
    tier.evict(one.digest)
    assert torch.equal(tier.get(two.digest)["a"], frozen), "a chunk goes with the last content that has it"
    assert len(_chunks(tmp_path)) == 2


def test_the_disk_works_while_chunks_are_written_and_is_waited_for_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []

    def noted(what: str, call):
        return lambda *given: (seen.append(what), call(*given))[1]

    monkeypatch.setattr("os.writev", noted("write", os.writev))
    monkeypatch.setattr("os.fsync", noted("flush", os.fsync))
    monkeypatch.setattr(files, "begin_to_write_out", noted("begin", files.begin_to_write_out))
    LocalTier(tmp_path).store(encode({"a": torch.arange(4096.0)}, chunk_bytes=1024))
    chunks, behind = seen[: seen.index("flush")], seen[seen.index("flush") :]
    assert chunks.count("write") == chunks.count("begin") == 16
    assert chunks.index("begin") < 8, "the disk stood still while chunks were written"
    assert behind == [*["flush"] * 16, "write", "flush", "flush"], "the manifest, its flush, the folder's"


def test_content_without_manifest_or_chunk_is_missing(tmp_path: Path):
    tier = LocalTier(tmp_path)
    manifest = tier.put(_tensors())
    _chunks(tmp_path)[0].unlink()
    with pytest.raises(StateMissing):
        tier.get(manifest.digest)
    Path(manifest.path).unlink()
    assert tier.locate(manifest.digest) is None
    with pytest.raises(StateMissing):
        tier.get(manifest.digest)


@pytest.mark.parametrize("body", [b"{", b""])
def test_a_harmed_manifest_is_refused_and_healed_by_the_next_put(tmp_path: Path, body: bytes):
    manifest = LocalTier(tmp_path).put(_tensors())
    Path(manifest.path).write_bytes(body)
    reader = LocalTier(tmp_path, "reader")
    for ask in (reader.get, reader.meta, reader.locate):
        with pytest.raises(CorruptState):
            ask(manifest.digest)
    reader.put(_tensors())
    assert torch.equal(reader.get(manifest.digest)["step"], _tensors()["step"])


@pytest.mark.parametrize("written", [0, 1])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int):
    tier = LocalTier(tmp_path)
    kept = tier.put({"x": torch.ones(3)}).digest
    before = sorted(path.name for path in (tmp_path / "state").iterdir())
    write, calls = os.writev, []

    def full(descriptor: int, pieces: list[memoryview]) -> int:
        calls.append(1)
        if len(calls) > written:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(StateFull):
            tier.store(encode(_tensors(), chunk_bytes=64))
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == before
    assert tier.get(kept).keys() == {"x"}
    assert tier.get(tier.store(encode(_tensors(), chunk_bytes=64)).digest).keys() == _tensors().keys()


def test_what_was_put_before_chunks_is_read_under_its_old_digest(tmp_path: Path):
    from safetensors.torch import save

    payload = save(_tensors(), metadata={"meta": json.dumps({"kind": "weights"})})
    digest = hashlib.sha256(payload).hexdigest()
    tier = LocalTier(tmp_path, "run-1")
    (tmp_path / "state" / f"{digest}.safetensors").write_bytes(payload)
    (tmp_path / "state" / f"{digest}.json").write_text(json.dumps({"digest": digest, "bytes": len(payload)}))
    assert tier.claim(digest)
    assert torch.equal(tier.get(digest)["b.weight"], _tensors()["b.weight"])
    assert tier.meta(digest) == {"kind": "weights"}
    assert tier.locate(digest).bytes == len(payload)
    room = {name: torch.zeros_like(tensor) for name, tensor in _tensors().items()}
    tier.get(digest, into=room)
    assert torch.equal(room["b.weight"], _tensors()["b.weight"])
    (tmp_path / "state" / f"{digest}.safetensors").write_bytes(payload[:-1])
    with pytest.raises(CorruptState):
        tier.get(digest)
    assert tier.evict(digest)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]


@pytest.mark.parametrize("digest", ["", "../secret", "A" * 64, "0" * 63])
def test_a_digest_never_becomes_another_path(tmp_path: Path, digest: str):
    with pytest.raises(StateMissing):
        LocalTier(tmp_path).get(digest)


def test_shared_content_goes_with_its_last_owner(tmp_path: Path):
    one, two = LocalTier(tmp_path, "run-1"), LocalTier(tmp_path, "run-2")
    digest = one.put(_tensors()).digest
    assert two.put(_tensors()).digest == digest
    assert not one.evict(digest)
    assert two.get(digest).keys() == _tensors().keys()
    assert two.evict(digest)
    with pytest.raises(StateMissing):
        one.get(digest)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]


def test_collect_spares_what_is_kept_young_or_claimed_elsewhere(tmp_path: Path):
    tier, other = LocalTier(tmp_path, "run-1"), LocalTier(tmp_path, "run-2")
    kept, old, young, shared = (tier.put(_tensors(scale)).digest for scale in (1.0, 2.0, 3.0, 4.0))
    other.put(_tensors(4.0))
    for digest in (kept, old, shared):
        past = time.time() - 100
        os.utime(tmp_path / "state" / f"{digest}.claim.run-1", (past, past))
    assert set(tier.collect({kept}, grace_s=50)) == {old, shared}
    assert set(tier.claims()) == {kept, young}
    assert tier.locate(old) is None
    assert all(tier.locate(digest) for digest in (kept, young, shared))


KILLED = """
import os, sys, torch
from workers.transfer import LocalTier
from workers.transfer.contents import encode
tier = LocalTier(sys.argv[1])
print("ready", flush=True)
while True:
    tier.store(encode({"x": torch.rand(1 << 16)}, chunk_bytes=1 << 12))
    for digest in list(tier.claims())[:-1]:
        tier.evict(digest)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_nothing_that_looks_whole(tmp_path: Path):
    """A real SIGKILL in mid-write, several times; whatever is located then is whole, and the rest is swept."""
    seen = 0
    for life in range(4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        wait_for(lambda: list((tmp_path / "state").glob("*.manifest")))
        time.sleep(0.013 * life)  # another instruction each time
        process.send_signal(signal.SIGKILL)
        process.wait()
        tier = LocalTier(tmp_path)
        for digest in tier.claims():
            if tier.locate(digest) is None:
                with pytest.raises(StateMissing):
                    tier.get(digest)
            else:
                assert tier.get(digest)["x"].shape == (1 << 16,)
                seen += 1
    assert seen
    kept = {digest for digest in tier.claims() if tier.locate(digest)}
    tier.collect(kept, grace_s=-1)
    names = {path.suffix for path in (tmp_path / "state").iterdir()}
    assert names <= {"", ".chunk", ".manifest", ".local"}, "no intent and nothing half written is left"
    for digest in kept:
        assert tier.get(digest)["x"].shape == (1 << 16,)
    tier.collect(set(), grace_s=-1)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]


def test_chunks_that_are_being_written_are_not_swept(tmp_path: Path):
    tier, other = LocalTier(tmp_path, "run-1"), LocalTier(tmp_path, "run-2")
    encoded = encode(_tensors(), chunk_bytes=64)

    def write(number: int) -> None:
        tier._chunks.store(encoded.description.chunks[number], encoded.pieces[number])
        other.collect(set(), grace_s=-1)

    digest = tier.take_in(encoded.digest, encoded.manifest, encoded.description, write).digest
    assert tier.get(digest).keys() == _tensors().keys()


@pytest.mark.parametrize("behind", [".intent", ".manifest"])
def test_a_put_that_ends_while_others_sweep_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str):
    """Whoever sweeps lists what is needed; a writer that ends behind either list is in one of the two."""
    tier, other = LocalTier(tmp_path, "run-1"), LocalTier(tmp_path, "run-2")
    encoded, listing, ended = encode(_tensors(), chunk_bytes=64), threading.Event(), threading.Event()
    named_before = local._named

    def write(number: int) -> None:
        tier._chunks.store(encoded.description.chunks[number], encoded.pieces[number])
        assert listing.wait(60)

    def put() -> None:
        tier.take_in(encoded.digest, encoded.manifest, encoded.description, write)
        ended.set()

    def named(root: Path, suffix: str) -> list[Path]:
        found = named_before(root, suffix)
        if suffix == behind:
            listing.set()
            assert ended.wait(60)
        return found

    writer = threading.Thread(target=put)
    writer.start()
    wait_for(lambda: list((tmp_path / "state").glob("*.chunk")))
    monkeypatch.setattr(other, "claims", dict)  # what it claims is not the question
    monkeypatch.setattr(local, "_named", named)
    other.collect(set(), grace_s=-1)
    writer.join()
    assert tier.get(encoded.digest).keys() == _tensors().keys()


def test_collect_spares_what_was_put_again_since_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tier = LocalTier(tmp_path, "run-1")
    digest, past = tier.put(_tensors()).digest, time.time() - 100
    os.utime(tmp_path / "state" / f"{digest}.claim.run-1", (past, past))
    before = tier.claims()

    def claims() -> dict[str, float]:
        LocalTier(tmp_path, "run-1").put(_tensors())
        return before

    monkeypatch.setattr(tier, "claims", claims)
    assert tier.collect(set(), grace_s=50) == []
    assert tier.get(digest).keys() == _tensors().keys()


def test_what_was_put_without_quick_checksums_is_checked_by_name(tmp_path: Path):
    encoded = encode(_tensors(), chunk_bytes=64)
    former = msgspec.json.encode(msgspec.structs.replace(encoded.description, layout=2, sums=()))
    digest = blake3(former).hexdigest()
    tier = LocalTier(tmp_path)
    tier.store(replace(encoded, digest=digest, manifest=former))
    reader = LocalTier(tmp_path, "reader")
    assert reader.get(digest).keys() == _tensors().keys()
    harmed = tier.chunk(encoded.description.chunks[0])
    harmed.write_bytes(bytes([harmed.read_bytes()[0] ^ 1]) + harmed.read_bytes()[1:])
    with pytest.raises(CorruptState):
        LocalTier(tmp_path, "other").get(digest)


def test_a_quick_checksum_spares_the_name_and_decides_nothing_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    encoded = encode(_tensors(), chunk_bytes=64)
    false = msgspec.json.encode(msgspec.structs.replace(encoded.description, sums=("0" * 32,) * len(encoded.pieces)))
    tier = LocalTier(tmp_path)
    digest = tier.store(encoded).digest
    lied = tier.store(replace(encoded, digest=blake3(false).hexdigest(), manifest=false)).digest
    assert LocalTier(tmp_path, "reader").get(lied).keys() == _tensors().keys(), "its bytes have their names"
    with monkeypatch.context() as patch:
        patch.setattr("workers.transfer.files.name_of", None)
        assert LocalTier(tmp_path, "reader").get(digest).keys() == _tensors().keys()
