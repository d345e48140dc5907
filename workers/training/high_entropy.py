"""The tokens of a micro-batch that carry the policy gradient: those at which the policy is least certain.

After "Beyond the 80/20 Rule" (arXiv 2506.01939), whose rule is the quantile 0.8. The set that is compared are all
tokens that the policy sampled in the rows of one micro-batch, under the weights that are trained; a token is kept whose
entropy is at least the quantile of that set, between neighbours by linear interpolation. So ties with the threshold are
kept, and at least one token is. The others have the advantage 0 from then on, which is a term of 0 in every loss: they
still count in Z, for the entropy bonus and for the penalty of a reference, and for the ratios of their row.

Entropies are computed first, in one more forward pass without gradient, of the very packs that are then trained on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from workers.training.objective import token_scores
from workers.training.packing import PackedTokens

if TYPE_CHECKING:
    from workers.training.blocks import Floats
    from workers.training.trained_model import TrainedModel


def least_certain(
    decoder: "TrainedModel", batches: Sequence[PackedTokens], quantile: float, beat: Callable[[], object]
) -> list[PackedTokens]:
    """Return a micro-batch's packs with the advantage 0 for every token below the quantile of its entropies."""
    import torch

    entropies = []
    for batch in batches:
        with torch.no_grad():
            entropies.append(token_scores(decoder, batch)[1].double().cpu().numpy())
        beat()
    sampled = [entropy[batch.present > 0] for entropy, batch in zip(entropies, batches, strict=True)]
    least = threshold(np.concatenate(sampled), quantile) if sampled else 0.0
    return [
        replace(batch, advantages=batch.advantages * (entropy >= least))
        for batch, entropy in zip(batches, entropies, strict=True)
    ]


def threshold(entropies: "Floats", quantile: float) -> float:
    """Return the least entropy that is kept: the first that is not below the quantile."""
    place = math.ceil(quantile * (len(entropies) - 1) - 1e-9)
    return float(np.partition(entropies, place)[place])
