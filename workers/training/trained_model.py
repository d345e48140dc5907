"""What a learner asks of a language model, whichever back end computes it."""

from typing import TYPE_CHECKING, Protocol

from workers.training.packing import PackedTokens

if TYPE_CHECKING:
    import torch


class TokenScorer(Protocol):
    """Says how probable tokens were."""

    def scores(self, batch: PackedTokens) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the log-probabilities [m] of a pack's drawn tokens, and the entropies [n] of what drew them."""
        ...


class TrainedModel(TokenScorer, Protocol):
    """Computes with weights that lie in flat parameters, and holds none of its own."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def width(self) -> int:
        """Return how many figures the head reads of a token."""
        ...

    def openings(self, batch: PackedTokens) -> "torch.Tensor":
        """Return [turns, width]: what the head reads where each turn's reply begins, of turns that have one."""
        ...

    def logits(self, batch: PackedTokens) -> "torch.Tensor":
        """Return [n, vocabulary]: logits at the tokens of a pack that predict."""
        ...
