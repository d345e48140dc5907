"""Tokens that weights of long ago made are left out; the others of their row stay. Z is not touched."""

from flexmarl.contracts.spec.algorithm import AlgorithmSpec
from workers.training.losses.base import Correction, Rows


def mask_stale(rows: Rows, settings: AlgorithmSpec) -> Correction:
    stale = rows.lags > settings.stale_after
    return Correction((~stale).to(rows.logprobs.dtype), stale)
