"""What a policy is refused for before anything of it is made."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from workers.models.checks import EMBEDDING
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.vocabulary import Codec

if TYPE_CHECKING:
    import torch


def check_tokenizer(policy: str, tokenizer: bytes, weights: "Mapping[str, torch.Tensor]") -> None:
    """Refuse a tokenizer some of whose ids the weights do not know; a model may know more than it names."""
    rows = len(weights[EMBEDDING]) if EMBEDDING in weights else None  # an adapter leaves the embedding as it is
    named = Codec(tokenizer).size
    if rows is not None and named > rows:
        detail = f"the tokenizer of {policy!r} has {named} ids, its model {rows}; use the model's tokenizer"
        raise TrainerRefusal(RefusalCode.TOKENIZER_DIFFERS, detail)
