"""The local tier gives back what was put, whole, or nothing."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from workers.transfer import CorruptState, LocalTier, StateMissing


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
    assert Path(manifest.path).stat().st_size == manifest.bytes


def test_digest_depends_on_content_alone(tmp_path: Path):
    tier = LocalTier(tmp_path)
    tensors = _tensors()
    backwards = dict(reversed(tensors.items()))
    backwards["b.weight"] = tensors["b.weight"].t().contiguous().t()
    first = tier.put(tensors, {"x": 1, "y": 2})
    assert tier.put(backwards, {"y": 2, "x": 1}).digest == first.digest
    assert hashlib.sha256(Path(first.path).read_bytes()).hexdigest() == first.digest
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


@pytest.mark.parametrize("harm", ["truncate", "flip", "append", "empty"])
def test_harmed_payload_is_refused_and_healed_by_the_next_put(tmp_path: Path, harm: str):
    manifest = LocalTier(tmp_path).put(_tensors())
    path = Path(manifest.path)
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[-3] ^= 1
    damaged = {"truncate": content[:-1], "flip": content, "append": content + b"\0", "empty": b""}[harm]
    path.write_bytes(damaged)
    reader = LocalTier(tmp_path, "reader")
    with pytest.raises(CorruptState):
        reader.get(manifest.digest)
    with pytest.raises(CorruptState):
        reader.meta(manifest.digest)
    reader.put(_tensors())
    assert torch.equal(reader.get(manifest.digest)["step"], _tensors()["step"])


def test_harm_after_a_verified_read_is_seen(tmp_path: Path):
    tier = LocalTier(tmp_path)
    manifest = tier.put(_tensors())
    tier.get(manifest.digest)
    content = bytearray(Path(manifest.path).read_bytes())
    content[-1] ^= 1
    Path(manifest.path).write_bytes(content)
    with pytest.raises(CorruptState):
        tier.get(manifest.digest)


def test_payload_without_manifest_does_not_exist(tmp_path: Path):
    tier = LocalTier(tmp_path)
    manifest = tier.put(_tensors())
    (tmp_path / "state" / f"{manifest.digest}.json").unlink()
    assert tier.locate(manifest.digest) is None
    with pytest.raises(StateMissing):
        tier.get(manifest.digest)


def test_unreadable_manifest_is_refused(tmp_path: Path):
    tier = LocalTier(tmp_path)
    manifest = tier.put(_tensors())
    (tmp_path / "state" / f"{manifest.digest}.json").write_bytes(b"{")
    with pytest.raises(CorruptState):
        tier.get(manifest.digest)


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


def test_writer_killed_midway_leaves_nothing_that_looks_whole(tmp_path: Path):
    """The process dies between the payload's bytes and its final name; a later collect clears the rest."""
    code = (
        "import os, sys, torch; from workers.transfer import LocalTier;"
        "os.rename = lambda *a: os._exit(9);"
        "LocalTier(sys.argv[1]).put({'x': torch.ones(4)})"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    tier = LocalTier(tmp_path)
    assert [path.suffix for path in (tmp_path / "state").glob("*writing")] == [".writing"]
    assert not list((tmp_path / "state").glob("*.safetensors"))
    tier.collect(set(), grace_s=-1)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]
