"""The model factory: sizes, determinism, initialisation, and folders that plain transformers loads."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flexmarl.contracts.specification.team import FactoryModel, FolderModel
from workers.models import (
    UnsupportedModel,
    architecture_of,
    build_model,
    tokenizer_json,
    tokenizer_of,
    write_tokenizer,
)
from workers.models.architecture import parse_architecture
from workers.vocabulary import Codec, UnknownWord

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))


@pytest.mark.parametrize(("size", "low", "high"), [("S", 80_000, 95_000), ("M", 330_000, 350_000)])
def test_sizes_are_those_of_the_specification(size: str, low: int, high: int) -> None:
    model = build_model(FactoryModel(size=size), WORDS, seed=1)
    assert low <= sum(p.numel() for p in model.parameters()) <= high
    assert model.config.vocab_size == len(WORDS)
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight


def test_medium_models_have_a_head_size_that_vllm_serves() -> None:
    assert architecture_of(FactoryModel(size="M")).head_dim == 32


def test_equal_seeds_give_equal_weights_and_other_seeds_do_not() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = build_model(FactoryModel(), WORDS, seed=5).state_dict()
    assert torch.equal(before, torch.get_rng_state()), "the global generator was touched"
    torch.manual_seed(8)
    second = build_model(FactoryModel(), WORDS, seed=5).state_dict()
    other = build_model(FactoryModel(), WORDS, seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_initialisation_follows_the_source() -> None:
    plain = build_model(FactoryModel(), WORDS, seed=5).state_dict()
    assert plain["model.layers.0.mlp.up_proj.weight"].std().item() == pytest.approx(0.15, rel=0.05)
    scaled = build_model(FactoryModel(init_std=0.02, head_scale=2.5), WORDS, seed=5).state_dict()
    assert scaled["model.layers.0.mlp.up_proj.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert scaled["lm_head.weight"].std().item() == pytest.approx(0.05, rel=0.1)


@pytest.mark.usefixtures("models_in_tmp")
def test_plain_transformers_loads_model_and_tokenizer_from_a_folder(tmp_path) -> None:
    model = build_model(FactoryModel(), WORDS, seed=3)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, tokenizer_json(WORDS))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("w3 w1 w36", return_tensors="pt").input_ids
    assert ids.tolist() == [[1, 6, 4, 39]]
    assert len(tokenizer) == len(WORDS)
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    source = FolderModel(path=str(tmp_path))
    again = build_model(source, (), seed=0)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert architecture_of(source) == architecture_of(FactoryModel())
    assert Codec(tokenizer_of(source, ())).encode("w3 w1 w36") == ids[0].tolist()


def test_codec_encodes_decodes_and_refuses_unknown_words() -> None:
    codec = Codec(tokenizer_json(WORDS))
    assert codec.size == len(WORDS)
    assert codec.encode("w0  w1\n w2") == [1, 3, 4, 5]
    assert codec.encode("") == [1]
    assert codec.decode([3, 4, 2]) == "w0 w1"
    assert codec.decode([3, 4, 2], special=True) == "w0 w1 <eos>"
    assert codec.words([3, 2]) == ["w0", "<eos>"]
    assert codec.ids_of(["<eos>", "w1"]) == (2, 4)
    with pytest.raises(UnknownWord, match="stranger"):
        codec.encode("w0 stranger")
    with pytest.raises(UnknownWord, match="stranger"):
        codec.ids_of(["w0", "stranger"])


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("a", "b", "c"), "begins with"),
        (("<pad>", "<bos>", "<eos>", "a", "a"), "once"),
        (("<pad>", "<bos>", "<eos>", "a b"), "spaces"),
    ],
)
def test_a_vocabulary_is_checked(words: tuple[str, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        tokenizer_json(words)


def test_every_word_of_a_random_text_comes_back() -> None:
    codec = Codec(tokenizer_json(WORDS))
    text = " ".join(np.random.default_rng(0).choice(WORDS[3:], size=200))
    assert codec.decode(codec.encode(text)) == text


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mamba"},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4}},
        {"use_sliding_window": True},
        {"hidden_act": "gelu"},
    ],
)
def test_an_architecture_that_would_be_computed_wrongly_is_refused(change: dict) -> None:
    config = {"model_type": "qwen2", "num_attention_heads": 4, "hidden_size": 64}
    assert parse_architecture(config).head_dim == 16
    with pytest.raises(UnsupportedModel, match="torch engine"):
        parse_architecture(config | change)
