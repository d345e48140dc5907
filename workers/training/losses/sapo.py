"""Soft adaptive policy optimisation: instead of a clip, a gate that closes smoothly on both sides of ratio 1.

-(4 / t) sigmoid(t (r - 1)) A, steeper for negative advantages (`gate_negative`) than for others (`gate_positive`).
At ratio 1 its gradient is the policy gradient's.
"""

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import SapoOptions


class Sapo(Loss[SapoOptions]):
    Options = SapoOptions

    def terms(self, rows: Rows) -> TokenTerms:
        import torch

        steep = torch.full_like(rows.advantages, self.options.gate_negative)
        steepness = torch.where(rows.advantages > 0, torch.full_like(steep, self.options.gate_positive), steep)
        gate = torch.sigmoid(steepness * (rows.log_ratio().exp() - 1.0)) * 4.0 / steepness
        return TokenTerms(-gate * rows.advantages)
