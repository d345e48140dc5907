"""Checkpoints are folders that plain transformers loads and generates from."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flexmarl.contracts.specification.experiment import ExperimentSpec
from tests.support.small_disk import fill, small_disk
from workers.child import IntervalLog
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import AccumulateRequest, BindRequest, CheckpointRequest, StepRequest, TrainRow
from workers.transfer import LocalTier

ROW = TrainRow(
    prompt=np.array([1, 4, 8], "<i4").tobytes(),
    response=np.array([20, 21], "<i4").tobytes(),
    logprobs=np.array([-3.0, -3.0], "<f4").tobytes(),
    allowed=b"",
    temperature=1.0,
    advantages=[1.0],
    weight=1.0,
)
POLICIES = ("speaker", "listener")


def _trainer(home: Path, model: dict[str, object]) -> Trainer:
    spec = ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {}, "listener": {}},
            "environment": {"type": "reference_game"},
            "policies": {policy: {"model": model} for policy in POLICIES},
        }
    )
    return Trainer(spec, 7, "a", str(home), "cpu", IntervalLog())


def _train_one(trainer: Trainer) -> dict[str, str]:
    """Bind and step both policies once; return the digests of version 1."""
    digests = {}
    for policy in POLICIES:
        trainer.bind(BindRequest(policy, CREATE))
        trainer.accumulate(AccumulateRequest(policy, "0:a", 1, 0.0, [ROW]))
        digests[policy] = trainer.step(StepRequest(policy, "0:a", [1], 1, 2e-3)).digest
    return digests


def test_plain_transformers_loads_and_generates(tmp_path: Path):
    trainer = _trainer(tmp_path, {"type": "factory", "size": "S"})
    digests = _train_one(trainer)
    reply = trainer.checkpoint(CheckpointRequest("best", 1, dict.fromkeys(POLICIES, 1), digests))
    assert reply.path == str(tmp_path / "checkpoints/run-7/step-1")
    assert reply.bytes == sum(file.stat().st_size for file in Path(reply.path).rglob("*") if file.is_file())
    for policy in POLICIES:
        model = AutoModelForCausalLM.from_pretrained(Path(reply.path) / policy)
        tokenizer = AutoTokenizer.from_pretrained(Path(reply.path) / policy)
        stored = LocalTier(tmp_path, "reader").get(digests[policy])
        assert all(torch.equal(stored[name], tensor) for name, tensor in model.state_dict().items())
        asked = tokenizer("red circle", return_tensors="pt")
        assert asked.input_ids[0, 0] == tokenizer.bos_token_id
        made = model.generate(**asked, max_new_tokens=4, do_sample=False)
        assert made.shape[1] > asked.input_ids.shape[1]
        assert tokenizer.decode(made[0, asked.input_ids.shape[1] :])
    about = json.loads((Path(reply.path) / "flexmarl.json").read_text())
    files = about.pop("files")
    assert "speaker/model.safetensors" in files
    assert "flexmarl.json" not in files
    assert about == {"run": 7, "step": 1, "versions": dict.fromkeys(POLICIES, 1), "digests": digests}


def test_a_checkpoint_without_room_is_refused_by_name_and_written_when_there_is_some(short_tmp: Path):
    with small_disk(short_tmp, 96) as place:
        trainer = _trainer(place, {"type": "factory", "size": "S"})
        digests = _train_one(trainer)
        trainer.settle()
        asked = CheckpointRequest("best", 1, dict.fromkeys(POLICIES, 1), digests)
        (place / "checkpoints").mkdir()
        for left in (0, 300_000):  # no folder can be made; a folder can, and no model
            filler = fill(place, left)
            with pytest.raises(TrainerRefusal, match=r"no room left in .*checkpoints/run-7") as refused:
                trainer.checkpoint(asked)
            assert refused.value.code is RefusalCode.STATE_FULL
            assert not list((place / "checkpoints").rglob("*.safetensors"))
            filler.unlink()
        assert trainer.checkpoint(asked).bytes > 0


@pytest.mark.usefixtures("models_in_tmp")
def test_a_checkpoint_of_its_own_kind_is_a_model_source(tmp_path: Path):
    """A folder goes in and out again with its tokenizer and configuration."""
    first = _trainer(tmp_path / "one", {"type": "factory", "size": "M"})
    path = Path(first.checkpoint(CheckpointRequest("last", 1, {}, _train_one(first))).path)
    second = _trainer(tmp_path / "two", {"type": "folder", "path": str(path / "speaker")})
    digests = _train_one(second)
    again = Path(second.checkpoint(CheckpointRequest("last", 1, {}, digests)).path)
    model = AutoModelForCausalLM.from_pretrained(again / "speaker")
    stored = LocalTier(tmp_path / "two", "reader").get(digests["speaker"])
    assert torch.equal(model.lm_head.weight, stored["lm_head.weight"])
    tokenizers = [AutoTokenizer.from_pretrained(folder / "speaker") for folder in (path, again)]
    assert tokenizers[0]("red circle").input_ids == tokenizers[1]("red circle").input_ids


def test_there_is_one_folder_of_a_step_whoever_wants_it(tmp_path: Path):
    trainer = _trainer(tmp_path, {"type": "factory"})
    digests = _train_one(trainer)
    root = tmp_path / "checkpoints/run-7"
    for step in (1, 2):
        first, again = (trainer.checkpoint(CheckpointRequest(label, step, {}, digests)) for label in ("last", "best"))
        assert first == again
    assert sorted(folder.name for folder in root.iterdir()) == ["step-1", "step-2"]


def test_writing_again_changes_nothing_and_a_failure_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = _trainer(tmp_path, {"type": "factory"})
    digests = _train_one(trainer)
    asked = CheckpointRequest("last", 1, {}, digests)
    first = trainer.checkpoint(asked)
    weights = Path(first.path) / "speaker/model.safetensors"
    written = weights.stat().st_ino, weights.stat().st_mtime_ns
    assert trainer.checkpoint(asked) == first
    assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == written
    monkeypatch.setattr("workers.training.checkpoints.sync_tree", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        trainer.checkpoint(CheckpointRequest("last", 2, {}, digests))
    assert [folder.name for folder in (tmp_path / "checkpoints/run-7").iterdir()] == ["step-1"]
    assert json.loads((Path(first.path) / "flexmarl.json").read_text())["step"] == 1
