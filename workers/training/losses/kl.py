"""Distance of the trained policy from a reference, token by token, as a term of the loss.

All are estimates from the tokens that were drawn, of KL(policy || reference). With d = log p / p_reference and
r = p / p_engine, their gradients by log p are

- `k3`: 1 - e^-d. Never negative and of little variance as a value, but its gradient is not that of the divergence.
- `k2`: d. Biased as a value; the true gradient on policy, the same that -d as a reward has.
- `k3_weighted`: r d, since r is differentiated too. Unbiased as a value and as a gradient, on policy and off it. TRL
  has it by default (`use_bias_correction_kl`), after DeepSeek-V3.2 (arXiv 2512.02556).

The plain log-ratio is no option: the mean of its gradient is zero.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flexmarl.algorithms.losses import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    import torch

KlEstimator = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""log p / p_reference and log p / p_engine of each token -> its part of the divergence."""


def k2(log_ratio: "torch.Tensor", since_sampled: "torch.Tensor") -> "torch.Tensor":
    return 0.5 * log_ratio.square()


def k3(log_ratio: "torch.Tensor", since_sampled: "torch.Tensor") -> "torch.Tensor":
    return (-log_ratio).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1() + log_ratio


def k3_weighted(log_ratio: "torch.Tensor", since_sampled: "torch.Tensor") -> "torch.Tensor":
    return since_sampled.exp() * k3(log_ratio, since_sampled)


KL_ESTIMATORS: Mapping[str, KlEstimator] = {"k2": k2, "k3": k3, "k3_weighted": k3_weighted}
