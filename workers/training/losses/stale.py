"""Tokens that weights of long ago made are left out; the others of their row stay. Z is not touched."""

from flexmarl.algorithms.losses import Correction, Corrector, Rows
from flexmarl.contracts.specification.corrections import MaskStaleOptions


class MaskStale(Corrector[MaskStaleOptions]):
    Options = MaskStaleOptions

    def correct(self, rows: Rows) -> Correction:
        stale = rows.lags > self.options.stale_after
        return Correction((~stale).to(rows.logprobs.dtype), stale)
