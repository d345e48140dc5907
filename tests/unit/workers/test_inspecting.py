"""A folder is a model that runs may use, or is refused by name, before a weight of it is read."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from flexmarl.contracts.specification.team import FactoryModel, FolderModel
from tests.support.chat_model import chat_home, chat_model
from tests.support.chat_templates import CHATML, END, tokenizer
from workers.models import UnsupportedModel, build_model, write_tokenizer
from workers.models.errors import ModelRefused
from workers.models.inspecting import EMBEDDING, REFUSED, inspect
from workers.models.rendering import WAIT_S
from workers.models.tokenizer import tokenizer_json
from workers.models.weights import weight_shapes

__all__ = ["chat_home", "chat_model"]
pytestmark = pytest.mark.usefixtures("models_in_tmp")
SIZES = {
    "vocab_size": 260, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


def write_chat_model(folder: Path, family: str = "llama", **settings: object) -> Path:
    """Write a tiny chat model as transformers does, with a byte-level tokenizer and a ChatML template."""
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **settings}))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **settings}))
    words = tokenizer()
    model.generation_config.eos_token_id = words.token_to_id(END)
    model.save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "bos_token": None}))
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_chat_model(tmp_path / "model")


def changed(folder: Path, name: str, **values: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refusal(folder: Path) -> tuple[str, str]:
    with pytest.raises(ModelRefused) as refused:
        inspect(str(folder))
    return refused.value.code, str(refused.value)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_of_transformers_is_known_by_its_heads(tmp_path: Path, family: str, tied: bool):
    folder = write_chat_model(tmp_path / family, family, tie_word_embeddings=tied)
    facts = inspect(str(folder))
    held = load_file(folder / "model.safetensors")
    assert facts.parameters == sum(tensor.numel() for tensor in held.values())
    assert facts.bytes == sum(tensor.numel() * tensor.element_size() for tensor in held.values())
    assert (facts.architecture, facts.context, facts.vocabulary) == (family, 128, 260)
    assert (facts.stop, facts.special, facts.warnings) == ([END], {"eos_token": END}, [])
    assert facts.sample.startswith("<|im_start|>system\nYou are part of a team.<|im_end|>\n")
    assert facts.sample.endswith("<|im_start|>assistant\n")
    assert "".join(token.text for token in facts.sample_tokens) == facts.sample
    ids = tokenizer().encode(facts.sample, add_special_tokens=False).ids
    assert [token.id for token in facts.sample_tokens] == ids


def test_a_family_that_only_the_library_computes_is_known_too(tmp_path: Path):
    folder = write_chat_model(tmp_path / "model")
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, eos_token_id=257))
    model.save_pretrained(folder)
    facts = inspect(str(folder))
    assert (facts.architecture, facts.context, facts.vocabulary) == ("qwen3", 128, 260)
    assert facts.parameters == sum(tensor.numel() for tensor in model.parameters())


def test_weights_of_several_files_are_counted_together(tmp_path: Path):
    folder = write_chat_model(tmp_path / "one")
    whole, weights = inspect(str(folder)), load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    save_file({name: weights[name] for name in names[:5]}, folder / "model-1.safetensors")
    save_file({name: weights[name] for name in names[5:]}, folder / "model-2.safetensors")
    assert inspect(str(folder)) == whole
    save_file({names[0]: weights[names[0]]}, folder / "model-3.safetensors")
    assert refusal(folder) == ("wrong_weights", f"{names[0]} is in two files; keep one of them")


def test_a_model_of_the_factory_passes(tmp_path: Path):
    words = ("<pad>", "<bos>", "<eos>", "red", "blue")
    build_model(FactoryModel(), words, 1).save_pretrained(tmp_path / "made")
    write_tokenizer(tmp_path / "made", tokenizer_json(words))
    facts = inspect(str(tmp_path / "made"))
    assert facts.plain_template
    assert "no chat template" in facts.warnings[0]
    assert (
        facts.sample == "system: You are part of a team.\nuser: What is 2+3?\nassistant: 5\nuser: And 3+4?\nassistant: "
    )


@pytest.mark.slow
def test_the_packaged_chat_model_passes(chat_model: Path):
    facts = inspect(str(chat_model))
    assert (facts.parameters, facts.bytes, facts.dtypes) == (134_515_008, 269_030_016, ["BF16"])
    assert (facts.context, facts.vocabulary, facts.stop) == (8192, 49_152, ["<|im_end|>"])
    assert facts.warnings == []


def test_pickles_are_refused_and_never_opened(model: Path, tmp_path: Path):
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "opened"),)

    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    assert "Pickles are never read: pytorch_model.bin." in inspect(str(model)).warnings
    (model / "model.safetensors").unlink()
    code, text = refusal(model)
    assert (code, "save the weights as *.safetensors" in text) == ("pickle", True)
    assert not (tmp_path / "opened").exists()


def test_files_that_are_missing_are_named(model: Path):
    for name, code in {
        "tokenizer.json": "no_tokenizer",
        "model.safetensors": "no_weights",
        "config.json": "no_config",
    }.items():
        (model / name).unlink()
        found, text = refusal(model)
        assert found == code
        assert name.removeprefix("model") in text
    (model / "adapter_config.json").write_text("{}")
    assert refusal(model)[0] == "is_adapter"


def test_truncated_weights_are_refused(model: Path):
    path = model / "model.safetensors"
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 100, 7, 0):
        path.write_bytes(whole[:length])
        assert refusal(model)[0] == "unreadable_weights"


def test_a_link_out_of_the_root_is_not_followed(model: Path, tmp_path: Path):
    path = model / "model.safetensors"
    elsewhere = path.rename(tmp_path / "elsewhere.safetensors")
    path.symlink_to(elsewhere)
    code, text = refusal(model)
    assert (code, "links are not followed" in text) == ("unreadable_weights", True)
    for link in (tmp_path / "link",):
        link.symlink_to(model)
        with pytest.raises(UnsupportedModel, match="links are not followed"):
            inspect(str(link))


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        ({"model_type": "nonesuch"}, "unknown_architecture", "has no model_type 'nonesuch'"),
        ({"model_type": None}, "unknown_architecture", "such as llama, mistral, qwen2"),
        ({"model_type": "qwen33"}, "unknown_architecture", "such as qwen3"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "x.Y"}}, "own_code", "is not run"),
        ({"model_type": "qwen3", "quantization_config": {"bits": 4}}, "unknown_architecture", "quantised"),
        ({"num_attention_heads": 0, "head_dim": None}, "bad_config", "does not describe a model"),
        ({"num_hidden_layers": 10**9}, "bad_config", "at most 1000 layers"),
        ({"hidden_size": "wide"}, "bad_config", "does not describe a model"),
        ({"num_hidden_layers": 3}, "wrong_weights", "model.layers.2.input_layernorm.weight is absent"),
        ({"intermediate_size": 64}, "wrong_weights", r"is (32, 48), by config.json it is (32, 64)"),
        ({"tie_word_embeddings": True, "attention_bias": True}, "wrong_weights", "k_proj.bias is absent"),
    ],
)
def test_a_configuration_that_is_not_the_weights_is_refused(model: Path, config: dict, code: str, said: str):
    changed(model, "config.json", **config)
    found, text = refusal(model)
    assert (found, said in text) == (code, True), text


def test_a_tokenizer_of_another_model_is_refused(model: Path):
    weights = load_file(model / "model.safetensors")
    for name in (EMBEDDING, "lm_head.weight"):
        weights[name] = weights[name][:200].clone()
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    changed(model, "config.json", vocab_size=200)
    code, text = refusal(model)
    assert (code, "names ids up to 257, the embedding knows 200" in text) == ("vocabulary_too_large", True)


def test_a_damaged_tokenizer_is_refused(model: Path):
    (model / "tokenizer.json").write_text("{}")
    assert refusal(model)[0] == "bad_tokenizer"


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("tokenizer_config.json", {"eos_token": "</s>"}, "eos_token is '</s>', which the tokenizer does not know"),
        ("generation_config.json", {"eos_token_id": 259}, "eos_token_id 259"),
        ("generation_config.json", {"eos_token_id": [257, 9999]}, "eos_token_id 9999"),
    ],
)
def test_special_tokens_that_are_none_are_refused(model: Path, name: str, values: dict, said: str):
    changed(model, name, **values)
    code, text = refusal(model)
    assert (code, said in text) == ("special_token_unknown", True)


@pytest.mark.parametrize("template", ["{{ nothing.there }}", "{% for %}", "{{ raise_exception('no system') }}"])
def test_a_template_that_does_not_render_is_refused(model: Path, template: str):
    (model / "chat_template.jinja").write_text(template)
    code, text = refusal(model)
    assert (code, "messages of system, user and assistant" in text) == ("template_fails", True)


SQUARED = "{%% for a in range(99999) %%}{%% for b in range(99999) %%}%s{%% endfor %%}{%% endfor %%}"


@pytest.mark.parametrize(
    ("template", "code", "said"),
    [
        (SQUARED % "", "template_out_of_bounds", "more than 2 s of a processor"),
        (SQUARED % "{{ 'x' * (99999 + b) }}", "template_out_of_bounds", "writes more than 8388608 characters"),
        ("{{ 'x' * 8000000000 }}", "template_out_of_bounds", "one operation makes more than 8388608 characters"),
        ("{{ 'x' * 2000000 }}", "template_too_large", "writes more than 1 MiB"),
    ],
)
@pytest.mark.slow
def test_a_template_that_takes_minutes_or_gigabytes_is_refused_in_bounds(model: Path, template, code, said):
    (model / "chat_template.jinja").write_text(template)
    began = time.monotonic()
    found, text = refusal(model)
    assert (found, said in text) == (code, True), text
    assert time.monotonic() - began < WAIT_S


def test_a_model_without_an_end_of_turn_is_used_with_a_warning(model: Path):
    (model / "tokenizer_config.json").unlink()
    (model / "generation_config.json").unlink()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    assert inspect(str(model)).warnings == [
        "No token ends the assistant's turn; set eos_token_id in generation_config.json."
    ]


@pytest.mark.parametrize(
    ("card", "config", "licence"),
    [
        ("---\nlicense: apache-2.0\ntags: [x]\n---\n# A model", {}, "apache-2.0"),
        ("---\nlicense: other\nlicense_name: gemma\n---\n", {}, "gemma"),
        ("---\nlicense:\n- mit\n- bsd\n---\n", {}, "mit, bsd"),
        ("---\nlicense: apache-2.0\n---\n", {"license": "mit"}, "mit"),
        ("# A model under the licence of\nlicense: mit", {}, ""),
        ("---\nlicense: [unclosed\n---\n", {}, ""),
        ("---\nlicense: &a [*a]\n---\n", {}, ""),
        ("---\nlicense: mit\n", {}, ""),
        (None, {}, ""),
        (None, {"license": {"type": "mit"}}, ""),
    ],
)
def test_the_licence_is_the_one_that_the_model_says(model: Path, card: str | None, config: dict, licence: str):
    changed(model, "config.json", **config)
    if card is not None:
        (model / "README.md").write_text(card)
    assert inspect(str(model)).licence == licence


def test_no_weight_is_read(model: Path, monkeypatch: pytest.MonkeyPatch):
    def read(*_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(torch.Tensor, "to", read)
    inspect(str(model))
    assert set(weight_shapes(FolderModel(path=str(model)), 0)) == set(load_file(model / "model.safetensors"))


@pytest.mark.slow
def test_the_command_writes_facts_or_the_refusal(model: Path, tmp_path: Path):
    def ask(*arguments: str) -> tuple[int, dict[str, object]]:
        done = subprocess.run(
            [sys.executable, "-m", "workers.models.inspecting", *arguments], capture_output=True, text=True, check=False
        )
        return done.returncode, json.loads(done.stdout)

    code, facts = ask(str(model), "--model-root", str(tmp_path))
    assert (code, facts["architecture"]) == (0, "llama")
    (model / "tokenizer.json").unlink()
    code, refused = ask(str(model), "--model-root", str(tmp_path))
    assert (code, refused["code"]) == (REFUSED, "no_tokenizer")
    code, refused = ask(str(model))
    assert (code, refused["code"]) == (REFUSED, "unreadable_folder")
