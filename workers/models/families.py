"""Which trainer back end computes a policy's model, and what it needs to know of the model. Without transformers.

`native` is this project's own decoder of Qwen2- and Llama-style models; `transformers` is any causal language model of
the installed library. `auto` is native wherever native can.
"""

import json
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.specification.team import FactoryModel, PolicySpec
from workers.models.architecture import Architecture, UnsupportedModel, architecture_of
from workers.models.weights import model_config

DROPPED = ("auto_map", "_name_or_path", "transformers_version")
"""Settings of `config.json` that say nothing of the model; `auto_map` names code that is never run."""


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
        return _library_model(settings)
    try:
        return architecture_of(settings.source)
    except UnsupportedModel as error:
        if settings.trainer == "native":
            raise UnsupportedModel(f"{error}; set trainer: transformers and resources.engine: vllm") from error
        return _library_model(settings)


def _library_model(settings: PolicySpec) -> LibraryModel:
    config = model_config(settings.source, 0)
    if config.get("quantization_config"):
        text = "its weights are quantised (quantization_config in config.json), and only plain ones can be trained"
        raise UnsupportedModel(f"{text}; name a folder with fp32, bf16 or fp16 weights")
    kept = {name: value for name, value in config.items() if name not in DROPPED}
    return LibraryModel(json.dumps(kept, sort_keys=True), sized=not isinstance(settings.source, FactoryModel))
