"""What a decoder needs to know of a model besides its weights, without torch or transformers.

Sizes that the weights show (vocabulary, hidden, layers, MLP) are not repeated here; the reader of the weights takes
them from the tensors.
"""

from dataclasses import dataclass

from flexmarl.contracts.model_sizes import FACTORY_SIZES
from flexmarl.contracts.specification.team import FactoryModel, OwnSource
from workers.models.errors import UnsupportedModel
from workers.models.opening import ModelFolder
from workers.models.places import folder_of

__all__ = ["Architecture", "UnsupportedModel", "architecture_of", "parse_architecture", "read_architecture"]

MAX_POSITIONS = 4096
"""Longest context of a factory model; its positions are rotary, so a longer limit costs nothing but was never tried."""

PAD, BOS, EOS = 0, 1, 2
"""Ids of the special words of a factory vocabulary."""

SERVED_TYPES = ("qwen2", "llama")
"""`model_type`s whose decoder the torch engine knows."""


@dataclass(frozen=True, slots=True)
class Denoising:
    """How a block-diffusion model makes replies. Its mask is the word `PAD`, which it never says."""

    block: int
    """Tokens"""
    steps: int
    """Most of a block"""
    confidence: float | None
    """What is more probable is revealed at once; None: nothing is for that."""


@dataclass(frozen=True, slots=True)
class Architecture:
    model_type: str
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    max_positions: int
    denoising: Denoising | None = None
    """None: from left to right."""


def architecture_of(source: OwnSource) -> Architecture:
    """Return the architecture of a model source; raise `UnsupportedModel` when our decoder does not know it."""
    if not isinstance(source, FactoryModel):
        return read_architecture(folder_of(source))
    size = FACTORY_SIZES[source.size]
    by_blocks = Denoising(source.block, source.denoising_steps, source.confidence) if source.denoises else None
    width = size.hidden // size.heads
    return Architecture("qwen2", size.heads, size.heads, width, 10_000.0, 1e-6, MAX_POSITIONS, by_blocks)


def read_architecture(path: str) -> Architecture:
    """Read `config.json` of a Hugging Face folder."""
    with ModelFolder(path) as folder:
        config = folder.json("config.json")
    try:
        return parse_architecture(config)
    except UnsupportedModel:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, ZeroDivisionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UnsupportedModel(f"config.json does not describe a model: {said}") from error


def parse_architecture(config: dict[str, object]) -> Architecture:
    """Interpret a Hugging Face configuration; refuse what the decoder would compute wrongly."""
    kind = str(config.get("model_type"))
    if kind not in SERVED_TYPES:
        raise UnsupportedModel(f"model_type {kind!r} is not served by the torch engine; it serves {SERVED_TYPES}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert isinstance(rope, dict)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise UnsupportedModel(f"rope_type {rope_type!r} is not served by the torch engine; it serves 'default'")
    if config.get("use_sliding_window"):
        raise UnsupportedModel("sliding-window attention is not served by the torch engine")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(
            f"hidden_act {config['hidden_act']!r} is not served by the torch engine; it serves 'silu'"
        )
    if config.get("mlp_bias"):
        raise UnsupportedModel("biases of the MLP (mlp_bias) are not served by the torch engine")
    number = {key: value for key, value in config.items() if isinstance(value, int | float)}
    heads = int(number["num_attention_heads"])
    return Architecture(
        model_type=kind,
        heads=heads,
        kv_heads=int(number.get("num_key_value_heads", heads)),
        head_dim=int(number.get("head_dim") or number["hidden_size"] // heads),
        rope_theta=float(rope.get("rope_theta") or number.get("rope_theta", 10_000.0)),
        norm_eps=float(number.get("rms_norm_eps", 1e-6)),
        max_positions=int(number.get("max_position_embeddings", MAX_POSITIONS)),
    )
