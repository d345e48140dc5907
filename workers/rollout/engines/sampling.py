"""Counter-based sampling: the draw of token t of a request depends on its seed and t, never on the rest of the batch.

A row's uniform number is an integer hash of (seed, t); the token comes from the inverse of the cumulative distribution.
Log-probabilities are those of the distribution drawn from: temperature and token mask applied, renormalised. Greedy
rows (temperature 0) report the masked distribution at temperature 1.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in the open interval (0, 1) per row."""
    mixed = _mix(_mix(seeds + _GOLDEN) + counters.astype(np.uint64) * _GOLDEN)
    return ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def draw(
    logits: "torch.Tensor",
    uniform: "torch.Tensor",
    temperature: "torch.Tensor | None" = None,
    greedy: "torch.Tensor | None" = None,
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return token ids and log-probabilities, one per row of masked logits.

    `temperature` [n] is positive; absent it is 1. Rows with `greedy` [n] true take the most likely token.
    """
    import torch

    if temperature is not None:
        logits = logits / temperature[:, None]
    logprobs = torch.log_softmax(logits, -1)
    cumulated = torch.cumsum(logprobs.exp(), -1, dtype=torch.float64)
    threshold = uniform[:, None] * cumulated[:, -1:]
    tokens = (cumulated < threshold).sum(-1)
    if greedy is not None:
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


MOST_LIKELY = 5


def uncertainty(logits: "torch.Tensor", temperature: "torch.Tensor") -> "torch.Tensor":
    """Return entropy in nats, mass of the likeliest token and of the five likeliest, [row, 3], of masked logits.

    They are of the distribution that is drawn from, so a token that is masked has no part in them.
    """
    import torch

    logprobs = torch.log_softmax(logits / temperature[:, None], -1)
    chances = logprobs.exp()
    entropy = -torch.where(chances > 0, chances * logprobs, 0.0).sum(-1)
    top = chances.topk(min(MOST_LIKELY, chances.shape[-1]), -1).values
    return torch.stack((entropy, top[:, 0], top.sum(-1)), -1)
