"""The Hugging Face model of a policy, for whoever wants more than its weights: exports, comparisons, other tools."""

from typing import TYPE_CHECKING, Any

from flexmarl.contracts.specification.team import FactoryModel, OwnSource
from workers.models.weights import initial_weights, model_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def build_model(source: OwnSource, vocabulary: tuple[str, ...], seed: int) -> "PreTrainedModel":
    """Return the model of a policy in fp32 on the CPU. A folder model ignores vocabulary and seed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    if not isinstance(source, FactoryModel):
        shape: Any = model_config(source, 0)
        own: Any = AutoModelForCausalLM
        found: PreTrainedModel = own.from_config(AutoConfig.for_model(**shape), dtype=torch.float32)
        found.load_state_dict(initial_weights(source, 0, seed), strict=not shape.get("tie_word_embeddings"))
        found.train(False)
        return found
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced at once
        config = Qwen2Config.from_dict(model_config(source, len(vocabulary)))
        model: PreTrainedModel = Qwen2ForCausalLM(config)
    model.load_state_dict(initial_weights(source, len(vocabulary), seed))
    model.train(False)
    return model
