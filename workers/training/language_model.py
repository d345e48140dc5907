"""What a learner asks of a language model, whichever back end computes it."""

from typing import TYPE_CHECKING, Protocol

from workers.training.packing import PackedTokens

if TYPE_CHECKING:
    import torch


class LanguageModel(Protocol):
    """Computes with weights that lie in flat parameters, and holds none of its own."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def width(self) -> int:
        """Return how many figures the head reads of a token."""
        ...

    def openings(self, batch: PackedTokens) -> "torch.Tensor":
        """Return [rows, width]: what the head reads at the last token of each row's prompt."""
        ...

    def scores(self, batch: PackedTokens) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the log-probabilities [m] of a pack's drawn tokens, and the entropies [n] of what drew them."""
        ...

    def logits(self, batch: PackedTokens) -> "torch.Tensor":
        """Return [n, vocabulary]: logits at the tokens of a pack that predict."""
        ...
