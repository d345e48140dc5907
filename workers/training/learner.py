"""One trainable policy in memory: weights, gradient, accumulator, optimizer. No wire, no files.

Invariants: a micro-batch enters the accumulator whole or not at all, and only with a finite gradient; a step divides
the sum once by Z, then clips, then moves the weights. A Z of 0 makes a null step: nothing moves.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flexmarl.contracts.specification.advantages import AdvantageOptions, GaeOptions, HabcOptions
from flexmarl.contracts.specification.team import AdamW, Lora
from flexmarl.contracts.wire import TrainStats
from workers.models.families import Shape
from workers.training.accumulator import Accumulator
from workers.training.adapted import LowRank
from workers.training.back_ends import order_of, trained_model
from workers.training.blocks import NO_VERSION, blocks_of
from workers.training.critic import Critic, Judged, LinearHeads
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.held_replies import HeldReplies
from workers.training.high_entropy import least_certain
from workers.training.objective import BatchSums, Objective, evaluate, recorded, survey
from workers.training.optimizer import FlatAdamW
from workers.training.packing import pack
from workers.training.pairs import preferred
from workers.training.parameters import FlatParameters
from workers.training.row_figures import each_turn
from workers.training.success_heads import SuccessHeads
from workers.training.trained_model import TokenScorer, TrainedModel
from workers.training.unrolling import Unrolling
from workers.training.wire import TrainRow

if TYPE_CHECKING:
    import torch

CRITIC = "critic"
"""Name of its part in a training state."""
TOKEN_BUDGET = {"cpu": 2048, "cuda": 65_536}
"""Input tokens per forward pass: on a CPU what the caches hold, on a GPU what fills it."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is trained of a policy whose own weights are frozen."""

    settings: Lora
    weights: "Mapping[str, torch.Tensor]"


@dataclass(frozen=True, slots=True)
class Learned:
    """What an optimizer step did."""

    null_step: bool
    grad_norm: float
    """Norm of the mean gradient before clipping."""


class Learner:
    critic: LinearHeads | None = None

    def __init__(
        self,
        weights: "Mapping[str, torch.Tensor] | FlatParameters",
        shape: Shape,
        objective: Objective,
        optimizer: AdamW,
        precision: str = "fp32",
        device: str = "cpu",
        epoch: str = "",
        ordered: bool = False,
        beat: Callable[[], object] = lambda: None,
        adapter: "Adapter | None" = None,
        recompute: bool = False,
        unrolling: Unrolling | None = None,
    ) -> None:
        """`beat` is called after each forward and backward pass. With an adapter, `weights` are frozen beneath it, and
        may be other learners' as well. `unrolling` lays out the rows of a block-diffusion policy."""
        whole = weights
        if not isinstance(whole, FlatParameters):
            order = order_of(shape, {name: tuple(tensor.shape) for name, tensor in whole.items()})
            whole = FlatParameters(whole, order, precision, device, adapter is not None)
        laid_over = None
        if adapter is not None:
            laid_over = LowRank(whole, adapter.weights, adapter.settings, precision, device)
        self.parameters = whole if laid_over is None else laid_over.parameters
        self.decoder: TrainedModel = trained_model(shape, whole, laid_over, recompute)
        self._unrolling = unrolling
        self.critic = _heads(self.decoder.width, objective.algorithm.advantage)
        gathered = Accumulator(self.parameters.fresh, epoch, ordered, in_place=self.parameters.precision == "bf16")
        self._learn(gathered, objective, optimizer, device, beat)

    def _learn(
        self, accumulator: Accumulator, objective: Objective, optimizer: AdamW, device: str, beat: Callable[[], object]
    ) -> None:
        """Begin with parameters and a decoder that are there."""
        self.accumulator = accumulator
        self.optimizer = FlatAdamW(self.parameters.master, optimizer)
        self._objective = objective
        self._clip = optimizer.grad_clip_norm
        self._beat = beat
        self._budget = TOKEN_BUDGET.get(device.partition(":")[0], TOKEN_BUDGET["cuda"])

    def accumulate(
        self,
        epoch: str,
        micro_batch: int,
        content: bytes,
        rows: Sequence[TrainRow],
        entropy_coef: float,
        version: int = NO_VERSION,
        reference: TokenScorer | None = None,
        proximal: int = NO_VERSION,
        replies: HeldReplies | None = None,
    ) -> TrainStats:
        """Add a micro-batch's gradient once; asked again, return the same figures. `version` is the trained one,
        `proximal` the one that the first step on the rows' cohort began with: -1 for the same; `replies` makes the
        masks of those that were held to a grammar."""
        known = self.accumulator.known(epoch, micro_batch, content)
        if known is not None:
            return known
        judged = None
        if self.critic is not None:
            rows, judged = self._judged(self.critic, rows)
        objective = self._objective.after(version - proximal if proximal >= 0 else 0)
        stats = self.backward(rows, entropy_coef, objective, version, reference, replies)
        if self.critic is not None and judged is not None:
            stats = stats.model_copy(update={"value_rows": judged.rows, "value_loss_sum": judged.loss})
            self.critic.gather(judged, first=not self.accumulator.micro_batches)
        self.accumulator.add(micro_batch, content, stats)
        return stats

    def _judged(self, critic: LinearHeads, rows: Sequence[TrainRow]) -> tuple[list[TrainRow], Judged]:
        """Let the critic see what the policy reads where each turn begins."""
        said, decoder = [row for row in rows if row.response], self.decoder
        read = each_turn(said, decoder.vocabulary, self._budget, decoder.openings, decoder.width)
        return critic.judge(said, read)

    def gradient(
        self,
        rows: Sequence[TrainRow],
        entropy_coef: float,
        objective: Objective,
        version: int = NO_VERSION,
        reference: TokenScorer | None = None,
        replies: HeldReplies | None = None,
    ) -> "tuple[torch.Tensor, TrainStats]":
        """Return the un-normalised gradient of rows, valid until the next call, with their figures.

        An accumulator that is summed in place is void afterwards, until an epoch is opened.
        """
        self.parameters.fresh.zero_()
        stats = self.backward(rows, entropy_coef, objective, version, reference, replies)
        return self.parameters.fresh, stats

    def backward(
        self,
        rows: Sequence[TrainRow],
        entropy_coef: float,
        objective: Objective,
        version: int,
        reference: TokenScorer | None,
        replies: HeldReplies | None = None,
    ) -> TrainStats:
        """Add the un-normalised gradient of rows to what the accumulator made ready; return their figures."""
        began = time.perf_counter()
        count, weighed = len(rows), None
        if objective.clones:
            rows = [row for row in rows if any(row.advantages)]
        if objective.paired:
            rows, weighed = preferred(rows, self.decoder, reference, objective, self._budget, replies)
            reference = None
        blocks = blocks_of(rows, objective.aggregate, self.decoder.vocabulary, version, replies, self._unrolling)
        self.accumulator.begin()
        sums = BatchSums()
        batches = pack(blocks, self.decoder.vocabulary, self._budget)
        if objective.entropy_quantile:
            batches = least_certain(self.decoder, batches, objective.entropy_quantile, self._beat)
        if objective.loss.options.compares:
            objective = objective.compared(recorded(batches, objective))
        if objective.surveys:
            objective = survey(self.decoder, batches, objective, self._beat)
        for batch in batches:
            value, figures = evaluate(self.decoder, batch, objective, entropy_coef, reference)
            value.backward()  # type: ignore[no-untyped-call]
            del value  # else what its graph holds would lie beside the next pass
            sums = sums.plus(figures)
            self._beat()
        if not (math.isfinite(sums.loss) and math.isfinite(self.parameters.fresh.sum().item())):
            raise TrainerRefusal(RefusalCode.NONFINITE_GRADIENT, "the micro-batch's loss or gradient is not finite")
        stats = figures_of(rows, objective, sums, time.perf_counter() - began)
        if weighed is not None:
            stats = stats.model_copy(update={"z": float(weighed.pairs), "loss_sum": weighed.loss})
        return stats.model_copy(update={"rows": count})

    @property
    def shapes(self) -> Mapping[str, list[int]]:
        """Shapes of what a version publishes, by name."""
        return {name: list(tensor.shape) for name, tensor in self.parameters.named().items()}

    def step(self, learning_rate: float) -> Learned:
        """Move the weights along the accumulated mean gradient. The caller opens the next epoch."""
        moves = self.accumulator.z != 0.0
        norm = self.descend(self.accumulator.total, self.accumulator.z, learning_rate) if moves else 0.0
        if self.critic is not None:  # it learns of episodes too that the policy does not imitate
            self.critic.step()
        return Learned(not moves, norm)

    def descend(self, total: "torch.Tensor", z: float, learning_rate: float) -> float:
        """Close a sum of gradients by Z, clip it, take one optimizer step and return the norm before clipping.

        The sum's memory is used up, unless the step is refused.
        """
        norm = self._norm(total) / z
        if not math.isfinite(norm):
            raise TrainerRefusal(RefusalCode.NONFINITE_GRADIENT, "the accumulated gradient is not finite")
        total.mul_((self._clip / norm if norm > self._clip else 1.0) / z)
        self.optimizer.step(total, learning_rate)
        self.parameters.publish()
        return norm

    def restore(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Continue from the training state that belongs to the weights held."""
        self.optimizer.restore(state)
        if self.critic is not None and CRITIC in state:
            self.critic.restore(state[CRITIC])
        if "master" in state:
            self.parameters.master.copy_(state["master"])
            self.parameters.publish()

    def training_state(self) -> "dict[str, torch.Tensor]":
        """Return everything besides the weights that a bit-equal continuation needs."""
        state = self.optimizer.state()
        if self.critic is not None:
            state[CRITIC] = self.critic.state()
        if self.parameters.master is not self.parameters.compute:
            state["master"] = self.parameters.master
        return state

    @property
    def on_host(self) -> bool:
        """Tell whether all its memory lies where a suspended state can be read into it."""
        return self.parameters.master.device.type == "cpu"

    def memory(self) -> "dict[str, torch.Tensor]":
        """Return all that a bit-equal continuation needs, of the whole policy."""
        own = {
            "master": self.parameters.master,
            "first": self.optimizer.first,
            "second": self.optimizer.second,
            "accumulated": self.accumulator.total,
        }
        same = self.parameters.compute is self.parameters.master
        return own if same else {**own, "compute": self.parameters.compute}

    def refill(self, memory: "Mapping[str, torch.Tensor]") -> None:
        """Take over what another learner's `memory` held."""
        for name, tensor in self.memory().items():
            tensor.copy_(memory[name])

    def marks(self) -> dict[str, object]:
        """Return what a bit-equal continuation needs besides memory, as JSON can say it."""
        own = {"steps": self.optimizer.steps, "accumulator": self.accumulator.marks()}
        return own if self.critic is None else {**own, CRITIC: self.critic.marks()}

    def go_on(self, marks: "Mapping[str, Any]") -> None:
        """Continue where another learner of equal settings was suspended; its memory was brought already."""
        self.optimizer.steps = marks["steps"]
        self.accumulator.go_on(marks["accumulator"])
        if self.critic is not None:
            self.critic.go_on(marks[CRITIC])

    def _norm(self, vector: "torch.Tensor") -> float:
        return float(vector.norm())


def figures_of(rows: Sequence[TrainRow], objective: Objective, sums: BatchSums, seconds: float) -> TrainStats:
    """Return what is told of a micro-batch: its rows, and the sums over its passes."""
    lengths = [len(row.response) // 4 for row in rows]
    return TrainStats(
        rows=len(rows),
        tokens=sum(lengths),
        z=sum(objective.aggregate(n)[1] * _weight(row, objective) for row, n in zip(rows, lengths, strict=True)),
        loss_sum=sums.loss,
        entropy_sum=sums.entropy,
        kl_engine_sum=sums.kl_engine,
        logprob_gap_sum=sums.logprob_gap,
        logprob_gap_max=sums.logprob_gap_max,
        clipped_sum=sums.clipped,
        corrected_sum=sums.corrected,
        older_tokens=int(sums.older_tokens),
        kl_update_sum=sums.kl_update,
        kl_reference_sum=sums.kl_reference,
        seconds=seconds,
    )


def _weight(row: TrainRow, objective: Objective) -> float:
    """Return how often a row counts in Z: once, or as often as its mean token is imitated."""
    if not objective.clones:
        return 1.0
    tokens = row.lengths()[1::2]
    return sum(own * n for own, n in zip(row.advantages, tokens, strict=True)) / max(1, sum(tokens))


def _heads(width: int, settings: AdvantageOptions) -> LinearHeads | None:
    """Return what is learned beside a policy for its advantages."""
    match settings:
        case GaeOptions():
            return Critic(width, settings)
        case HabcOptions():
            return SuccessHeads(width, settings)
        case _:
            return None
