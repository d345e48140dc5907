"""Weights and configuration of a model source as plain tensors and JSON, without loading transformers.

A trainer needs nothing else of a model, and importing transformers would cost it more memory than everything it trains.
`build_model` makes Hugging Face models of the same weights.
"""

from typing import TYPE_CHECKING, TypeVar

from flexmarl.contracts.model_sizes import FACTORY_SIZES
from flexmarl.contracts.specification.team import FactoryModel, OwnSource, Precision, RegisteredModel
from workers.models.architecture import BOS, EOS, MAX_POSITIONS, PAD, UnsupportedModel
from workers.models.opening import ModelFolder
from workers.models.places import folder_of
from workers.models.stored import stored_shapes, stored_weights
from workers.models.tensors import read_tensors, tensor_files, tensor_shapes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

BLOCK_DIFFUSION = "flexmarl_block_diffusion"
"""`model_type` of what is exported of a block-diffusion model."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")
"""What a folder may hold for its tokenizer; copied into exports as they are."""


def initial_weights(
    source: OwnSource, words: int, seed: int, precision: Precision = "fp32"
) -> "dict[str, torch.Tensor]":
    """Return a policy's first weights under their Hugging Face names, in bf16 if asked and in fp32 otherwise, on the
    CPU. Tied ones appear once. Each is converted alone, so that never all of them lie there in two precisions."""
    import torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if isinstance(source, FactoryModel):
        return {name: tensor.to(dtype) for name, tensor in _factory_weights(source, words, seed).items()}
    tied = bool(model_config(source, 0).get("tie_word_embeddings"))
    if isinstance(source, RegisteredModel):
        weights = {name: tensor.to(dtype) for name, tensor in stored_weights(source.digest).items()}
    else:
        weights = _folder_weights(folder_of(source), dtype)
    return _untied(weights) if tied else weights


def weight_shapes(source: OwnSource, words: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a policy, without reading any; a folder's vocabulary is its own."""
    if isinstance(source, FactoryModel):
        return _factory_shapes(source, words)
    tied = bool(model_config(source, 0).get("tie_word_embeddings"))
    shapes = stored_shapes(source.digest) if isinstance(source, RegisteredModel) else _folder_shapes(folder_of(source))
    return _untied(shapes) if tied else shapes


def model_config(source: OwnSource, words: int) -> dict[str, object]:
    """Return `config.json` of a model source as plain transformers reads it."""
    if not isinstance(source, FactoryModel):
        with ModelFolder(folder_of(source)) as folder:
            return folder.json("config.json")
    size = FACTORY_SIZES[source.size]
    return (
        _by_blocks(source) if source.denoises else {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    ) | {
        "vocab_size": words,
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "max_position_embeddings": MAX_POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "initializer_range": source.init_std or size.init_std,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "dtype": "float32",
    }


def _by_blocks(source: FactoryModel) -> dict[str, object]:
    """Return what `config.json` says of a block-diffusion model: no library computes it as a causal one."""
    shape = {"block_size": source.block, "denoising_steps": source.denoising_steps, "confidence": source.confidence}
    return {"model_type": BLOCK_DIFFUSION, "mask_token_id": PAD, **shape}


def _factory_weights(source: FactoryModel, words: int, seed: int) -> "dict[str, torch.Tensor]":
    import torch

    std = source.init_std or FACTORY_SIZES[source.size].init_std
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in sorted(_factory_shapes(source, words).items()):
        if name.endswith("bias"):
            weights[name] = torch.zeros(shape)
        elif len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            scale = std * source.head_scale if name.startswith("lm_head") else std
            weights[name] = torch.randn(shape, generator=generator) * scale
    return weights


def _factory_shapes(source: FactoryModel, words: int) -> dict[str, tuple[int, ...]]:
    size = FACTORY_SIZES[source.size]
    hidden, mlp = size.hidden, size.mlp
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (words, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (words, hidden),
    }
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}."
        for part in ("q_proj", "k_proj", "v_proj"):
            shapes[f"{prefix}self_attn.{part}.weight"] = (hidden, hidden)
            shapes[f"{prefix}self_attn.{part}.bias"] = (hidden,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (mlp, hidden)
        shapes[f"{prefix}mlp.up_proj.weight"] = (mlp, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, mlp)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def _folder_weights(path: str, dtype: "torch.dtype") -> "dict[str, torch.Tensor]":
    weights: dict[str, torch.Tensor] = {}
    with ModelFolder(path) as folder:
        for name in tensor_files(folder):
            weights.update(read_tensors(folder, name, dtype))
    if not weights:
        raise UnsupportedModel("the folder has no *.safetensors; put the weights in it")
    return weights


def _folder_shapes(path: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    with ModelFolder(path) as folder:
        for name in tensor_files(folder):
            shapes.update({key: shape for key, (shape, *_) in tensor_shapes(folder, name).items()})
    return shapes


def _untied(named: dict[str, T]) -> dict[str, T]:
    """Leave out the head that is the embedding."""
    return {name: value for name, value in named.items() if name != "lm_head.weight"}
