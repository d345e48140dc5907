"""An imported model comes out as it went in: every small file byte for byte, every weight bit for bit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.workers.test_inspecting import write_chat_model
from workers.models.exporting import files_of_model
from workers.models.stored import FILES, OWNER, put_model
from workers.transfer import CorruptState, LocalTier, StateMissing, contents

pytestmark = pytest.mark.usefixtures("models_in_tmp")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with weights of several types, one of them empty, and a size that no chunk divides."""
    folder = write_chat_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    for name, dtype in zip(sorted(weights)[:3], (torch.bfloat16, torch.float16, torch.float64), strict=True):
        weights[name] = weights[name].to(dtype)
    weights["empty"] = torch.empty(0, 3)
    weights["flags"] = torch.tensor([True, False, True])
    weights["numbers"] = torch.arange(7, dtype=torch.int8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    return folder


@pytest.mark.parametrize("chunk_bytes", [1000, 4096, contents.CHUNK_BYTES])
def test_what_was_imported_comes_out_again(model: Path, tmp_path: Path, monkeypatch, chunk_bytes: int):
    monkeypatch.setattr(contents.encode, "__defaults__", (None, chunk_bytes))
    digest = put_model(tmp_path / "home", str(model)).digest
    tier = LocalTier(tmp_path / "home", OWNER)
    assert tier.description(digest).chunk_bytes == chunk_bytes
    files = files_of_model(tier, digest)
    assert set(files) == {"model.safetensors", *(name for name in FILES if (model / name).exists())}
    out = tmp_path / "out"
    out.mkdir()
    for name, file in files.items():
        (out / name).write_bytes(b"".join(file.read()))
        assert (out / name).stat().st_size == file.size
    for name in files.keys() - {"model.safetensors"}:
        assert (out / name).read_bytes() == (model / name).read_bytes()
    was, now = (load_file(folder / "model.safetensors") for folder in (model, out))
    assert {name: tensor.dtype for name, tensor in was.items()} == {name: tensor.dtype for name, tensor in now.items()}
    assert all(torch.equal(was[name], now[name]) for name in was)


def test_a_damaged_chunk_is_not_handed_out(model: Path, tmp_path: Path):
    digest = put_model(tmp_path / "home", str(model)).digest
    tier = LocalTier(tmp_path / "home", OWNER)
    chunk = tier.chunk(tier.description(digest).chunks[0])
    whole = chunk.read_bytes()
    chunk.chmod(0o600)
    chunk.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptState):
        b"".join(files_of_model(tier, digest)["model.safetensors"].read())


def test_only_models_are_exported(tmp_path: Path):
    tier = LocalTier(tmp_path / "home", OWNER)
    weights = tier.put({"w": torch.ones(3)}, {"kind": "weights"}).digest
    for digest in (weights, "a" * 64, "../../etc"):
        with pytest.raises(StateMissing):
            files_of_model(tier, digest)
