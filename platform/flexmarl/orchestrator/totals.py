"""What micro-batches add up to. Every figure is a sum, but the largest gap, which is the largest."""

from dataclasses import dataclass

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
    older_tokens: int = 0
    kl_update_sum: float = 0.0
    seconds: float = 0.0

    def add(self, more: "TrainStats | TrainTotals") -> None:
        """Take in what a micro-batch, or a step of several, adds."""
        self.rows += more.rows
        self.tokens += more.tokens
        self.z += more.z
        self.loss_sum += more.loss_sum
        self.entropy_sum += more.entropy_sum
        self.kl_engine_sum += more.kl_engine_sum
        self.logprob_gap_sum += more.logprob_gap_sum
        self.logprob_gap_max = max(self.logprob_gap_max, more.logprob_gap_max)
        self.clipped_sum += more.clipped_sum
        self.older_tokens += more.older_tokens
        self.kl_update_sum += more.kl_update_sum
        self.seconds += more.seconds
