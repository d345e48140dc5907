"""Tapered off-policy REINFORCE: what was good is imitated, what was bad weighs min(1, p / p_engine) of the whole row.

Positive rows carry no ratio, so they may come from anywhere; the push against negative ones fades as the policy leaves
them. Meant for rewards of both signs without a baseline (`reinforce`); exact with `seq_mean_token_sum`.
"""

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import ToprOptions


class Topr(Loss[ToprOptions]):
    Options = ToprOptions

    def terms(self, rows: Rows) -> TokenTerms:
        import torch

        negative = rows.advantages < 0
        # Tapered before it is exponentiated: a row's ratio may be beyond every number.
        tapered = rows.row_log_ratio().detach().clamp(max=0.0).exp()
        weight = torch.where(negative, tapered, torch.ones_like(tapered))
        return TokenTerms(-weight * rows.advantages * rows.logprobs, negative & (rows.row_log_ratio().detach() > 0))
