"""What micro-batches add up to. Every figure is a sum, but the largest gap, which is the largest."""

from dataclasses import dataclass, fields

from flexmarl.contracts.wire import TrainStats


@dataclass(slots=True)
class TrainTotals:
    """Un-normalised sums over the accumulated micro-batches of a policy's step."""

    rows: int = 0
    tokens: int = 0
    z: float = 0.0
    loss_sum: float = 0.0
    entropy_sum: float = 0.0
    kl_engine_sum: float = 0.0
    logprob_gap_sum: float = 0.0
    logprob_gap_max: float = 0.0
    clipped_sum: float = 0.0
    corrected_sum: float = 0.0
    older_tokens: int = 0
    kl_update_sum: float = 0.0
    kl_reference_sum: float = 0.0
    value_rows: int = 0
    value_loss_sum: float = 0.0
    seconds: float = 0.0

    def add(self, more: "TrainStats | TrainTotals") -> None:
        """Take in what a micro-batch, or a step of several, adds."""
        widest = max(self.logprob_gap_max, more.logprob_gap_max)
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.logprob_gap_max = widest


FIGURES = tuple(own.name for own in fields(TrainTotals))
