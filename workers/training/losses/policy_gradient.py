"""Plain policy gradient: -A log p. The gradient of every loss at ratio 1."""

from flexmarl.contracts.spec.algorithm import Loss
from workers.training.losses.base import Rows, TokenTerms


def policy_gradient(rows: Rows, settings: Loss) -> TokenTerms:
    return TokenTerms(-rows.advantages * rows.logprobs)
