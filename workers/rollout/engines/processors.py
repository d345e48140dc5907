"""What changes logits before a token is drawn, beside masks and temperature; row by row, with vLLM's meaning and order.

What falls away has the logit -inf, so what is drawn from and reported is the distribution of what is left.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def penalise(logits: "torch.Tensor", said: Sequence[int], penalty: float) -> None:
    """Make the tokens of one row's context less likely (above 1) or more, in place. `logits` [vocabulary]."""
    import torch

    ids = torch.tensor(sorted(set(said)), device=logits.device)
    found = logits[ids]
    logits[ids] = torch.where(found > 0, found / penalty, found * penalty)


def truncate(
    logits: "torch.Tensor",
    temperature: "torch.Tensor",
    min_p: "torch.Tensor",
    top_k: "torch.Tensor",
    top_p: "torch.Tensor",
) -> "torch.Tensor":
    """Return logits [n, vocabulary] of which tokens that are not to be drawn are -inf.

    The others [n] say of each row: the positive temperature by which logits will be divided, and which tokens stay at
    it: those of `min_p` of the likeliest one's probability, of these the `top_k` likeliest (0: all), of these the
    fewest whose probabilities add up to `top_p`. Tokens as likely as the last of the `top_k` stay as well.
    """
    import torch

    heated = logits / temperature[:, None]
    least = heated.amax(-1, keepdim=True) + min_p[:, None].log()
    heated = heated.masked_fill(heated < least, -torch.inf)
    ascending, order = heated.sort(-1)
    words = logits.shape[-1]
    first = torch.where(top_k > 0, (words - top_k).clamp(min=0), torch.zeros_like(top_k))
    ascending = ascending.masked_fill(ascending < ascending.gather(1, first[:, None]), -torch.inf)
    below = ascending.softmax(-1).cumsum(-1) <= 1.0 - top_p[:, None]
    below[:, -1] = False
    gone = torch.zeros_like(below).scatter_(1, order, below | ascending.isneginf())
    return logits.masked_fill(gone, -torch.inf)
