"""Preferences between two members of a group: -A log p, with the A that its pair gives a row (`training.pairs`)."""

from flexmarl.contracts.spec.algorithm import Loss
from workers.training.losses.base import Rows, TokenTerms


def online_dpo(rows: Rows, settings: Loss) -> TokenTerms:
    return TokenTerms(-rows.advantages * rows.logprobs)
