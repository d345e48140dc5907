"""The clipped surrogate without a corner: the ratio r counts as 1 + w tanh((r - 1) / w).

At r = 1 its gradient is the policy gradient's; beyond 1 +- w it fades smoothly instead of ending.
"""

import torch

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from sample_plugins.options import SmoothClipOptions


class SmoothClip(Loss[SmoothClipOptions]):
    def terms(self, rows: Rows) -> TokenTerms:
        width, ratio = self.options.width, rows.log_ratio().exp()
        bounded = 1.0 + width * torch.tanh((ratio - 1.0) / width)
        return TokenTerms(-bounded * rows.advantages, ((ratio - 1.0).abs() > width).detach())
