"""No correction: every token counts as it was sampled, and nothing is computed for it."""

from flexmarl.algorithms.losses import Correction, Corrector, Rows
from flexmarl.contracts.specification.corrections import NoCorrectionOptions


class NoCorrection(Corrector[NoCorrectionOptions]):
    Options = NoCorrectionOptions

    def correct(self, rows: Rows) -> Correction:
        import torch

        return Correction(torch.ones_like(rows.present), torch.zeros_like(rows.present, dtype=torch.bool))
