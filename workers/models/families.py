"""Which trainer back end computes a policy's model, and what it needs to know of the model. Without transformers.

`native` is this project's own decoder of Qwen2- and Llama-style models; `transformers` is any causal language model of
the installed library. `auto` is native wherever native can.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from flexmarl.contracts.specification.team import FactoryModel, OwnSource, PolicySpec
from workers.models.architecture import Architecture, UnsupportedModel, architecture_of
from workers.models.weights import model_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

DROPPED = ("auto_map", "_name_or_path", "transformers_version")
"""Settings of `config.json` that say nothing of the model; `auto_map` names code that is never run."""
USUAL = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
"""Families that are named where none has a name like the one that was asked for."""
NEAR = 3
"""Families named that have names like it."""


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A model that the transformers library computes."""

    text: str
    """`config.json`, its settings in order."""
    sized: bool
    """Whether its vocabulary stands in the configuration; the weights tell it otherwise."""

    def config(self, words: int) -> dict[str, Any]:
        """Return the settings of the model's configuration class; `words` is the vocabulary of the weights."""
        config: dict[str, Any] = json.loads(self.text)
        return config if self.sized else {**config, "vocab_size": words}


Shape = Architecture | LibraryModel
"""What a back end needs to know of a model besides its weights; its type tells the back end."""


def shape_of(settings: PolicySpec) -> Shape:
    """Return what the trainer computes a policy with. Raises UnsupportedModel."""
    if settings.trainer == "transformers":
        return library_model(settings.source)
    try:
        return architecture_of(settings.source)
    except UnsupportedModel as error:
        if settings.trainer == "native":
            raise UnsupportedModel(f"{error}; set trainer: transformers and resources.engine: vllm") from error
        return library_model(settings.source)


def context_of(shape: Shape) -> int:
    """Return the longest context of a model in tokens; 0 where its configuration states none."""
    if isinstance(shape, Architecture):
        return shape.max_positions
    return int(getattr(library_config(shape, 0), "max_position_embeddings", None) or 0)


def library_model(source: OwnSource) -> LibraryModel:
    """Return a model as the library computes it. Raises UnsupportedModel."""
    return library_model_of(model_config(source, 0), sized=not isinstance(source, FactoryModel))


def library_model_of(config: Mapping[str, object], sized: bool = True) -> LibraryModel:
    """Return the model of a configuration as the library computes it. Raises UnsupportedModel."""
    if config.get("quantization_config"):
        text = "its weights are quantised (quantization_config in config.json), and only plain ones can be trained"
        raise UnsupportedModel(f"{text}; name a folder with fp32, bf16 or fp16 weights")
    kept = {name: value for name, value in config.items() if name not in DROPPED}
    return LibraryModel(json.dumps(kept, sort_keys=True), sized)


def library_config(model: LibraryModel, words: int) -> "PreTrainedConfig":
    """Return a model's configuration as the library reads it. Raises UnsupportedModel for what it does not know."""
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    settings = model.config(words)
    kind = settings.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        near = ", ".join(get_close_matches(str(kind), CONFIG_MAPPING.keys(), NEAR) or USUAL)
        raise UnsupportedModel(
            f"transformers {__version__} has no model_type {kind!r}; code that a model brings along "
            f"(trust_remote_code) is not run: choose one of the {len(CONFIG_MAPPING)} families that the library knows, "
            f"such as {near}"
        )
    try:
        config: PreTrainedConfig = AutoConfig.for_model(kind, **settings)
    except Exception as error:  # a configuration class raises what its checks raise
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UnsupportedModel(f"config.json does not describe a model: {said}") from error
    if config.get_text_config() is not config:
        raise UnsupportedModel(f"model_type {kind!r} is more than text; name a folder with its text model alone")
    return config


def sizes_of(source: OwnSource) -> tuple[Architecture, int]:
    """Return what an engine sets aside memory by, and the layers of any model. Raises UnsupportedModel."""
    config: Any = library_config(library_model(source), 0)
    heads = int(config.num_attention_heads)
    rope = getattr(config, "rope_parameters", None) or {}
    sizes = Architecture(
        model_type=str(config.model_type),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        rope_theta=float(rope.get("rope_theta", 0.0)),
        norm_eps=float(getattr(config, "rms_norm_eps", 0.0)),
        max_positions=int(config.max_position_embeddings),
    )
    return sizes, int(config.num_hidden_layers)
