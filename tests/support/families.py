"""Small models of many families, with random weights of their real configuration classes, saved as folders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4Config,
    GptOssConfig,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.models import tokenizer_json
from workers.rollout.environments.registry import family_of

WORDS = 64
SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 1024,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
"""Shorter than the documents of the tests."""

FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen3": lambda: Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SHAPE, **EXPERTS, num_experts=12, moe_intermediate_size=32),
    "llama3": lambda: LlamaConfig(**SHAPE, rope_parameters=SCALED),
    "smollm2": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "gemma3": lambda: Gemma3TextConfig(**SHAPE, **SLIDING, query_pre_attn_scalar=32, final_logit_softcapping=3.0),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=16),
    "gpt_oss": lambda: GptOssConfig(**SHAPE, **SLIDING, **EXPERTS, num_local_experts=4),
}
MORE: dict[str, Callable[[], Any]] = {
    "gemma2, scores and logits capped": lambda: Gemma2Config(**SHAPE, **SLIDING, attn_logit_softcapping=2.0),
    "cohere, logits scaled": lambda: CohereConfig(**SHAPE),
    "granite, logits divided": lambda: GraniteConfig(**SHAPE, logits_scaling=8.0),
    "glm4": lambda: Glm4Config(**SHAPE),
    "falcon, attention of its own": lambda: FalconConfig(
        vocab_size=WORDS, hidden_size=48, num_hidden_layers=2, num_attention_heads=6
    ),
    "bloom, positions by slopes": lambda: BloomConfig(vocab_size=WORDS, hidden_size=48, n_layer=2, n_head=6),
    "lfm2, convolutions": lambda: Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
}


def saved(config: Any, folder: Path, seed: int = 1) -> Path:
    """Save a model of a configuration as its library does, with a tokenizer of the reference game's words."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json(family_of(spec_of(folder).environment).vocabulary()))
    return folder


def spec_of(folder: Path, engine: str = "vllm", **policy: Any) -> ExperimentSpec:
    """Return a run of the reference game whose speaker is a folder's model."""
    return ExperimentSpec.model_validate(
        {
            "agents": {"speaker": {}, "listener": {}},
            "policies": {"speaker": {"model": {"type": "folder", "path": str(folder)}, **policy}},
            "environment": {"type": "reference_game"},
            "resources": {"engine": engine},
        }
    )


def plain(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load a folder as anybody would."""
    experts = {"experts_implementation": "eager"} if dtype == torch.float64 else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **experts).eval()


def one_by_one(model: Any, documents: Sequence[Sequence[int]], last: int) -> list[torch.Tensor]:
    """Return plain transformers' logits at the last positions of documents, each computed alone."""
    return [model(input_ids=torch.tensor([list(ids)])).logits[0, -last:] for ids in documents]
