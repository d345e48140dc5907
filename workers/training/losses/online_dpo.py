"""Preferences between two members of a group: -A log p, with the A that its pair gives a row (`training.pairs`)."""

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import OnlineDpoOptions


class OnlineDpo(Loss[OnlineDpoOptions]):
    Options = OnlineDpoOptions

    def terms(self, rows: Rows) -> TokenTerms:
        return TokenTerms(-rows.advantages * rows.logprobs)
