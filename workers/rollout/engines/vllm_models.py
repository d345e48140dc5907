"""What the vLLM engine makes an instance of a model from, and with how much memory. vLLM itself is not needed to know.

Invariant: what the transformers library has no text model for, and heads that vLLM does not compute, are refused before
anything is started, with what would be served; whether vLLM has the family is vLLM's to say when it starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flexmarl.contracts.engine_rules import VLLM_HEAD_DIMS, divisors, numbers, uneven_parts
from flexmarl.contracts.specification.team import FactoryModel, OwnSource
from workers.models.architecture import Architecture, UnsupportedModel, architecture_of
from workers.models.checks import check_weights
from workers.models.families import library_model, sizes_of
from workers.models.weights import model_config

if TYPE_CHECKING:
    import torch

FLOAT_BYTES = 4
CACHE_BYTES = 64 * 2**20
"""Attention cache of one instance, unless its longest context needs more: room for 32 768 tokens of a factory model."""


@dataclass(frozen=True, slots=True)
class VllmModel:
    """All that an instance is made from, besides the weights."""

    source: OwnSource
    config: dict[str, Any]
    """`config.json` as vLLM reads it; its vocabulary comes from the weights."""
    architecture: Architecture
    devices: int = 1
    """Devices of its engine: each has an equal part of every layer."""

    @property
    def layers(self) -> int:
        return int(self.config["num_hidden_layers"])

    @property
    def cache_bytes(self) -> int:
        """Return the size of an instance's attention cache on each device: the usual one, or one full context and a
        half."""
        a = self.architecture
        token = 2 * self.layers * -(-a.kv_heads // self.devices) * a.head_dim * FLOAT_BYTES
        return max(CACHE_BYTES, token * a.max_positions * 3 // 2)

    def sized(self, words: int) -> dict[str, Any]:
        """Return the configuration for a vocabulary of so many words; a folder's says its own."""
        return {**self.config, "vocab_size": words} if isinstance(self.source, FactoryModel) else self.config

    def check(self, state: "Mapping[str, torch.Tensor]") -> int:
        """Return the vocabulary of weights that are whole: what vLLM misses in a load it would silently keep.

        Raises UnsupportedModel or NonfiniteWeights.
        """
        words = check_weights(self.source, state)
        return words if isinstance(self.source, FactoryModel) else int(self.config["vocab_size"])


def vllm_model(source: OwnSource, devices: int = 1) -> VllmModel:
    """Return what an instance for a model source on so many devices is made from. Raises UnsupportedModel."""
    config: dict[str, Any] = model_config(source, 0)
    try:
        architecture = architecture_of(source)
    except UnsupportedModel:
        architecture, layers = sizes_of(source)
        config = library_model(source).config(0) | {"num_hidden_layers": layers}
    if architecture.head_dim not in VLLM_HEAD_DIMS:
        legal = ", ".join(map(str, VLLM_HEAD_DIMS))
        raise UnsupportedModel(f"attention heads of {architecture.head_dim} are not served by vLLM; it serves {legal}")
    mlp = int(config.get("intermediate_size") or devices)  # not every family says it so; vLLM says what it cannot split
    if uneven := uneven_parts(architecture.heads, architecture.kv_heads, mlp, devices):
        legal = numbers(divisors(architecture.heads, architecture.kv_heads, mlp))
        raise UnsupportedModel(f"{uneven} cannot be split among {devices} devices; set engine_devices to {legal}")
    return VllmModel(source, config, architecture, devices)
