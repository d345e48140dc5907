"""Contents that the processes of a host read in one place: equal bits, checked, locked, never written."""

import re
import time
from pathlib import Path

import pytest
import torch

from workers.transfer import CorruptState, LocalTier, StateMissing, mapping
from workers.transfer.contents import encode
from workers.transfer.mapping import MappedMemory

CHUNK = 2 * 2**20


def _tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "across.chunks": torch.randn(1111, 1000, generator=generator),
        "bias": torch.randn(77, generator=generator).to(torch.bfloat16),
        "none": torch.empty(0, 3),
        "step": torch.tensor(9),
    }


def _put(home: Path) -> tuple[str, list[Path]]:
    """Put three chunks; return their digest and files."""
    tier = LocalTier(home)
    manifest = tier.store(encode(_tensors(), {"kind": "weights"}, CHUNK))
    return manifest.digest, [tier.chunk(name) for name in tier.description(manifest.digest).chunks]


def _same(found: dict[str, torch.Tensor]) -> bool:
    return all(
        found[name].dtype == tensor.dtype and found[name].shape == tensor.shape and torch.equal(found[name], tensor)
        for name, tensor in _tensors().items()
    )


def _area(address: int) -> tuple[str, int]:
    """Return rights and path, and locked bytes, of the memory that an address lies in."""
    head, locked = "", 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) (.*)", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
            head = bounds[3] if inside else ""
        elif head and line.startswith("Locked:"):
            locked = 1024 * int(line.split()[1])
            return head, locked
    raise AssertionError("nothing lies there")


def _goes(address: int) -> bool:
    """Tell whether memory goes, which it does in a thread of its own."""
    for _ in range(500):
        try:
            _area(address)
        except AssertionError:
            return True
        time.sleep(0.01)
    return False


def test_tensors_lie_in_the_files_locked_and_nobody_may_write(tmp_path: Path) -> None:
    digest, files = _put(tmp_path)
    found = LocalTier(tmp_path).mapped(digest)
    assert _same(found)
    area, locked = _area(found["across.chunks"].data_ptr())
    assert area.startswith("r--p"), "a write would reach memory of this process alone"
    assert area.endswith(files[0].name), "the first bytes were copied"
    assert locked, "the kernel may drop these pages and read them again, unchecked"


def test_they_outlive_the_files_until_the_last_tensor_goes(tmp_path: Path) -> None:
    digest, files = _put(tmp_path)
    found = LocalTier(tmp_path).mapped(digest)
    assert LocalTier(tmp_path).evict(digest)
    assert not any(file.exists() for file in files)
    assert _same(found)
    address = found["across.chunks"].data_ptr()
    kept = found.pop("step")
    del found
    assert "(deleted)" in _area(address)[0], "one tensor is left, and its memory is gone"
    del kept
    assert _goes(address)


def test_who_drops_the_last_tensor_does_not_wait_for_its_memory_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[object] = []
    monkeypatch.setattr(mapping, "_drop", held.append)
    digest, _ = _put(tmp_path)
    found = LocalTier(tmp_path).mapped(digest)
    address = found["across.chunks"].data_ptr()
    found.clear()
    while not held:
        time.sleep(0.001)
    assert _area(address), "it went where it was dropped"
    held.clear()
    assert _goes(address)


@pytest.mark.parametrize("harm", ["one byte", "short", "gone"])
def test_harm_is_seen_before_anything_is_given_out(tmp_path: Path, harm: str) -> None:
    digest, files = _put(tmp_path)
    match harm:
        case "one byte":
            with files[1].open("r+b") as file:
                file.seek(1000)
                byte = file.read(1)
                file.seek(1000)
                file.write(bytes([byte[0] ^ 1]))
        case "short":
            files[1].write_bytes(files[1].read_bytes()[:-1])
        case _:
            files[1].unlink()
    with pytest.raises(StateMissing if harm == "gone" else CorruptState):
        LocalTier(tmp_path).mapped(digest)


def test_where_memory_cannot_be_locked_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, files = _put(tmp_path)
    lay = MappedMemory.lay
    monkeypatch.setattr(MappedMemory, "lay", lambda *given: given[2] < 2 * CHUNK and lay(*given))
    found = LocalTier(tmp_path).mapped(digest)
    assert _same(found)
    found["across.chunks"].zero_()
    assert _same(LocalTier(tmp_path).get(digest))
    assert not _area(found["across.chunks"].data_ptr())[0].endswith(files[0].name)


def test_contents_of_odd_chunks_and_of_nothing_come_as_well(tmp_path: Path) -> None:
    tier = LocalTier(tmp_path)
    assert _same(tier.mapped(tier.store(encode(_tensors(), chunk_bytes=1000)).digest))
    assert tier.mapped(tier.put({}).digest) == {}
    assert tier.mapped(tier.put({"none": torch.empty(0, 2)}).digest)["none"].shape == (0, 2)
