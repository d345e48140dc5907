"""Models of several sizes with random weights, as folders, for the benchmark of publications."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.models.tokenizer import tokenizer_json, write_tokenizer
from workers.rollout.environments.registry import family_of

SIZES = {"tiny": (64, 2, 128, 4), "small": (128, 2, 256, 4), "25m": (512, 8, 1376, 8), "50m": (640, 10, 1728, 10),
         "200m": (1024, 16, 2752, 16)}  # fmt: skip
"""hidden, layers, MLP, heads"""


def team() -> dict[str, Any]:
    return {"agents": {"speaker": {}, "listener": {"policy": "speaker"}}, "environment": {"type": "reference_game"}}


def words() -> tuple[str, ...]:
    return family_of(ExperimentSpec.model_validate(team()).environment).vocabulary()


def make_model(folder: Path, size: str) -> Path:
    """Write a Hugging Face folder of random weights."""
    hidden, layers, mlp, heads = SIZES[size]
    vocabulary = words()
    write_tokenizer(folder, tokenizer_json(vocabulary))
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": len(vocabulary),
        "hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "max_position_embeddings": 1024, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"}, "tie_word_embeddings": False,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(size, len(vocabulary)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def weights(size: str, count: int) -> dict[str, torch.Tensor]:
    hidden, layers, mlp, _ = SIZES[size]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (count, hidden), "lm_head.weight": (count, hidden), "model.norm.weight": (hidden,)
    }  # fmt: skip
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj"):
            shapes[f"{stem}self_attn.{name}.weight"] = (hidden, hidden)
            shapes[f"{stem}self_attn.{name}.bias"] = (hidden,)
        shapes[f"{stem}self_attn.o_proj.weight"] = (hidden, hidden)
        shapes |= {f"{stem}mlp.{name}.weight": (mlp, hidden) for name in ("gate_proj", "up_proj")}
        shapes[f"{stem}mlp.down_proj.weight"] = (hidden, mlp)
        shapes |= {f"{stem}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator) * hidden**-0.5 if len(shape) > 1
        else torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        for name, shape in shapes.items()
    }  # fmt: skip
