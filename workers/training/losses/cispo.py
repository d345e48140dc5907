"""Clipped importance-sampling policy optimisation: -sg(clip(r, 1 - low, 1 + high)) A log p.

The ratio is a weight, held fixed, so every token keeps a gradient, also those whose ratio is clipped. As published
there is no lower bound (`clip_low: 1`) and the upper one is wide. Its value is a surrogate: only its gradient means
something.
"""

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import CispoOptions


class Cispo(Loss[CispoOptions]):
    Options = CispoOptions

    def terms(self, rows: Rows) -> TokenTerms:
        ratio = rows.log_ratio().detach().exp()
        weight = ratio.clamp(1.0 - self.options.clip_low, 1.0 + self.options.clip_high)
        return TokenTerms(-weight * rows.advantages * rows.logprobs, weight != ratio)
