"""Plain policy gradient: -A log p. The gradient of every loss at ratio 1."""

from flexmarl.algorithms.losses import Loss, Rows, TokenTerms
from flexmarl.contracts.specification.losses import PolicyGradientOptions


class PolicyGradient(Loss[PolicyGradientOptions]):
    Options = PolicyGradientOptions

    def terms(self, rows: Rows) -> TokenTerms:
        return TokenTerms(-rows.advantages * rows.logprobs)
