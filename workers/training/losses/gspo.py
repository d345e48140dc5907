"""Group sequence policy optimisation: the clipped surrogate on one ratio per row, the geometric mean of its tokens'.

s = exp(mean log p / p_engine) over the row's own tokens; a row is clipped as a whole. Its clip range is some thousand
times narrower than that of a token's ratio: 0.0003 and 0.0004 as published. Averaged over the rows' tokens it is GSPO
(`seq_mean_token_mean`); summed over them (`seq_mean_token_sum`) it is LUSPO.
"""

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import GspoOptions


class Gspo(Loss[GspoOptions]):
    Options = GspoOptions

    def terms(self, rows: Rows) -> TokenTerms:
        import torch

        ratio, advantages = rows.row_mean_log_ratio().exp(), rows.advantages
        bounded = ratio.clamp(1.0 - self.options.clip_low, 1.0 + self.options.clip_high)
        clipped = (ratio * advantages > bounded * advantages).detach()
        return TokenTerms(-torch.minimum(ratio * advantages, bounded * advantages), clipped)
