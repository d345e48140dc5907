"""The clipped surrogate: -min(r A, clip(r, 1 - low, 1 + high) A), r against the engine that sampled.

A dual clip c also bounds what a token of negative advantage may add: at most -c A, with no gradient beyond.
"""

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import PpoClipOptions


class PpoClip(Loss[PpoClipOptions]):
    Options = PpoClipOptions

    def terms(self, rows: Rows) -> TokenTerms:
        import torch

        ratio, advantages = rows.log_ratio().exp(), rows.advantages
        bounded = ratio.clamp(1.0 - self.options.clip_low, 1.0 + self.options.clip_high)
        clipped = (ratio * advantages > bounded * advantages).detach()
        gain = torch.minimum(ratio * advantages, bounded * advantages)
        if self.options.dual_clip is not None:
            worst = self.options.dual_clip * advantages
            beyond = (advantages < 0) & (gain < worst)
            clipped, gain = clipped | beyond.detach(), torch.where(beyond, worst.expand_as(gain), gain)
        return TokenTerms(-gain, clipped)
