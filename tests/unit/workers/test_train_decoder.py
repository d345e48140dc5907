"""The training forward pass equals plain Hugging Face models."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from flexmarl.contracts.specification.team import FactoryModel, FolderModel
from tests.support.packed import last_logits
from workers.models import UnsupportedModel, architecture_of, build_model
from workers.models.weights import initial_weights, model_config
from workers.training.decoder import Decoder, parameter_order
from workers.training.elementwise import gated, rotate
from workers.training.parameters import FlatParameters

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
MODELS = {
    "qwen2, grouped heads": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen2, tied": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "llama, no biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=16)),
    "llama, all biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True)),
    "one layer": lambda: Qwen2ForCausalLM(Qwen2Config(**(SHAPE | {"num_hidden_layers": 1}))),
}


def _decoder(source: FactoryModel | FolderModel, words: int) -> Decoder:
    weights = initial_weights(source, words, seed=3)
    return Decoder(FlatParameters(weights, parameter_order(weights.keys()), "fp32", "cpu"), architecture_of(source))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("models_in_tmp")
def test_logits_equal_those_of_the_folder_s_own_model(name: str, tmp_path):
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path)
    decoder = _decoder(FolderModel(path=str(tmp_path)), 0)
    inputs = [torch.randint(1, 50, (length,)) for length in (9, 4, 70, 11, 300)]
    with torch.no_grad():
        found = last_logits(decoder, [ids.tolist() for ids in inputs], 3)
        for ids, own in zip(inputs, found, strict=True):
            expected = model(input_ids=ids[None]).logits[0, -3:]
            assert ((own - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("size", ["S", "M"])
def test_factory_weights_are_those_of_the_hugging_face_factory(size: str):
    source = FactoryModel(size=size, head_scale=2.5)
    words = ("<pad>", "<bos>", "<eos>", "a", "b")
    built = build_model(source, words, seed=11)
    weights = initial_weights(source, len(words), seed=11)
    assert weights.keys() == built.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in built.state_dict().items())
    kept = built.config.to_dict() | {"architectures": ["Qwen2ForCausalLM"], "dtype": "float32"}
    config = model_config(source, len(words))
    assert {name: kept[name] for name in config} == config


def test_weights_of_another_kind_of_model_are_refused():
    weights = initial_weights(FactoryModel(), 5, seed=0)
    with pytest.raises(UnsupportedModel, match="q_norm"):
        parameter_order(weights.keys() | {"model.layers.0.self_attn.q_norm.weight"})
    with pytest.raises(UnsupportedModel, match=r"model\.norm"):
        parameter_order(weights.keys() - {"model.norm.weight"})
    with pytest.raises(ValueError, match="neighbours"):
        FlatParameters(weights, sorted(weights), "fp32", "cpu").leaf("lm_head.weight", "model.norm.weight")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_steps_by_element_are_the_composed_ones(dtype: torch.dtype):
    made = torch.Generator().manual_seed(0)
    x, above = (torch.randn(7, 3, 16, generator=made).to(dtype) for _ in range(2))
    angles = torch.randn(7, 1, 8, generator=made).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def product(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    limit = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    for own, composed in ((lambda x: rotate(x, cos, sin), turned), (gated, product)):
        found = []
        for way in (own, composed):
            leaf = x.clone().requires_grad_()
            y = way(leaf)
            y.backward(above[..., : y.shape[-1]])
            found.append((y.detach(), leaf.grad))
        for a, b in zip(*found, strict=True):
            assert a.dtype == dtype
            assert (a - b).norm() <= limit * b.norm()
