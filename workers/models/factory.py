"""Builds the Hugging Face model of a policy: tiny Qwen2 from a seed, or a folder's own weights."""

from typing import TYPE_CHECKING

from flexmarl.contracts.spec.team import FactoryModel, FolderModel
from workers.models.architecture import FACTORY_SIZES, MAX_POSITIONS

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

PAD, BOS, EOS = 0, 1, 2
"""Ids of the special words of a factory vocabulary."""


def build_model(source: FactoryModel | FolderModel, vocabulary: tuple[str, ...], seed: int) -> "PreTrainedModel":
    """Return the model of a policy in fp32 on the CPU. A folder model ignores vocabulary and seed."""
    if isinstance(source, FolderModel):
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(source.path, local_files_only=True, dtype=torch.float32)
    return _build_factory_model(source, len(vocabulary), seed)


def _build_factory_model(source: FactoryModel, words: int, seed: int) -> "PreTrainedModel":
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = FACTORY_SIZES[source.size]
    config = Qwen2Config(
        vocab_size=words,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        initializer_range=source.init_std or size.init_std,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are overwritten below
        model: PreTrainedModel = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    _draw_weights(model, config.initializer_range, source.head_scale, torch.Generator().manual_seed(seed))
    model.train(False)
    return model


def _draw_weights(model: "PreTrainedModel", std: float, head_scale: float, generator: "torch.Generator") -> None:
    """Overwrite every parameter in name order: normal matrices, unit norms, zero biases."""
    import torch

    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                scale = std * head_scale if name.startswith("lm_head") else std
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
