"""Distance of the trained policy from a reference, token by token, as a term of the loss.

Both are estimates from the tokens that were drawn, of KL(policy || reference). `k3` is never negative and has little
variance, but its gradient is not that of the divergence; `k2` is biased as a value and its gradient is the true one on
policy, the same that -log p / p_reference as a reward has. The plain log-ratio is no option: the mean of its gradient
is zero.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flexmarl.algorithms.losses import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    import torch

KlEstimator = Callable[["torch.Tensor"], "torch.Tensor"]
"""log p / p_reference of each token -> its part of the divergence."""


def k2(log_ratio: "torch.Tensor") -> "torch.Tensor":
    return 0.5 * log_ratio.square()


def k3(log_ratio: "torch.Tensor") -> "torch.Tensor":
    return (-log_ratio).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1() + log_ratio


KL_ESTIMATORS: Mapping[str, KlEstimator] = {"k2": k2, "k3": k3}
