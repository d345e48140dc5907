"""Decoupled PPO: w holds what the engine's weights differ by from the proximal ones, r what the steps since then added.

-w min(r A, clip(r) A), with r = p / p_proximal and w = p_proximal / p_engine, capped and held fixed. The proximal
policy is the version that a cohort's first step began with. Its log-probabilities are interpolated instead of computed
again: of a token that is d versions old, s steps after the proximal version, log p_proximal lies s / d of the way from
that of p back to the engine's. At the first step (s = 0) it is p's own; a token as new as the proximal version, or
newer, has w = 1.
"""

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import DecoupledPpoOptions


class DecoupledPpo(Loss[DecoupledPpoOptions]):
    Options = DecoupledPpoOptions

    def terms(self, rows: Rows) -> TokenTerms:
        import torch

        whole = rows.log_ratio()
        before = (rows.lags - rows.since).clamp(min=0.0) / rows.lags.clamp(min=1.0)
        share = before if rows.since else torch.ones_like(before)
        to_proximal = (share * whole).detach()
        weight, ratio = to_proximal.exp(), (whole - to_proximal).exp()
        capped = weight.clamp(max=self.options.weight_limit)
        bounded = ratio.clamp(1.0 - self.options.clip_low, 1.0 + self.options.clip_high)
        clipped = (ratio * rows.advantages > bounded * rows.advantages).detach() | (weight > capped)
        return TokenTerms(-capped * torch.minimum(ratio * rows.advantages, bounded * rows.advantages), clipped)
