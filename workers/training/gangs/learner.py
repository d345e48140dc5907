"""One rank's part of a policy that several trainers share: the learner of a single device on a part of each buffer.

The leader's learner is used like any other; what takes all ranks, it orders of the others first and then does with
them. Rows of a micro-batch are shared out among the ranks, their gradients meet as sums, cut like the weights. What a
step needs of the whole - the figures, the finiteness, the norm - is agreed on by all, so that all clip, refuse and step
alike.

Invariants: accumulator, optimizer and masters are the parts of one rank, in the layout of `Cut`; what the leader gives
out and takes in is whole, in the layout that a single device has. A refusal that one rank finds, all ranks raise.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flexmarl.contracts.specification.team import AdamW
from flexmarl.contracts.wire import TrainStats
from workers.models.families import Shape
from workers.training.accumulator import Accumulator
from workers.training.blocks import NO_VERSION, blocks_of
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.gangs.group import RankGroup
from workers.training.gangs.layout import Shapes, names_split
from workers.training.gangs.modules import ShardedWeights
from workers.training.gangs.orders import AccumulateOrder, Collect, Open, Restore, StepOrder
from workers.training.held_replies import HeldReplies
from workers.training.learner import Learned, Learner, figures_of
from workers.training.objective import BatchSums, Objective, evaluate
from workers.training.packing import PackedTokens, pack
from workers.training.trained_model import TokenScorer
from workers.training.wire import TrainRow

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

MASTER, FIRST, SECOND, ACCUMULATED, REFERENCE = "master", "first", "second", "accumulated", "reference"


class ShardedParameters:
    """This rank's part of the masters; FSDP2 computes with a copy in the precision of the policy."""

    def __init__(self, weights: ShardedWeights, group: RankGroup) -> None:
        import torch

        self._weights = weights
        self._group = group
        self.master = torch.zeros(weights.cut.length(group.rank), dtype=weights.dtype, device=group.device)
        self.compute = self.master
        self.fresh = torch.zeros_like(self.master)

    @property
    def size(self) -> int:
        """Elements of the whole policy."""
        return self._weights.cut.size

    def publish(self) -> None:
        """Make the weights that are computed with follow the masters."""
        self._weights.put(self.master)

    def named(self) -> "dict[str, torch.Tensor]":
        """Return the whole weights by name, as they are published; the leader alone may ask."""
        whole = collected(self._group, self._weights, MASTER, self.master)
        return names_split(whole.to(self._weights.compute_dtype), self._weights.shapes)

    def take(self, weights: "Weights") -> None:
        """Compute with given whole weights; masters of another precision stay, being nearer to the truth."""
        if self._weights.compute_dtype == self._weights.dtype:
            whole = flat(weights, self._weights.shapes)
            self.master.copy_(restored(self._group, self._weights, MASTER, whole))
            self.publish()


class SharedAccumulator(Accumulator):
    """The leader's accumulator: its books are of all ranks, its sum is this rank's part."""

    def __init__(self, fresh: "torch.Tensor", epoch: str, group: RankGroup) -> None:
        super().__init__(fresh, epoch)
        self._group = group

    def open(self, epoch: str) -> None:
        self._group.order(Open())
        super().open(epoch)


class ShardedLearner(Learner):
    def __init__(
        self,
        shapes: Shapes,
        shape: Shape,
        group: RankGroup,
        objective: Objective,
        optimizer: AdamW,
        precision: str,
        epoch: str,
        beat: Callable[[], object],
        recompute: bool = False,
    ) -> None:
        """Weights are zeros until they are restored."""
        self._group = group
        self._weights = ShardedWeights(shapes, shape, group, precision, recompute=recompute)
        self._reference: ShardedWeights | None = None
        self._new_reference = partial(ShardedWeights, shapes, shape, group, precision, frozen=True)
        self.parameters: Any = ShardedParameters(self._weights, group)
        self.decoder = self._weights.decoder
        accumulator = SharedAccumulator(self.parameters.fresh, epoch, group)
        self._learn(accumulator, objective, optimizer, group.device, beat)

    @property
    def shapes(self) -> Mapping[str, list[int]]:
        return {name: list(shape) for name, shape in self._weights.shapes.items()}

    @property
    def on_host(self) -> bool:
        """The whole policy lies nowhere."""
        return False

    def backward(
        self,
        rows: Sequence[TrainRow],
        entropy_coef: float,
        objective: Objective,
        version: int = NO_VERSION,
        reference: TokenScorer | None = None,
        replies: HeldReplies | None = None,
    ) -> TrainStats:
        """Take this rank's part of the gradient of all rows; return the figures of all."""
        began = time.perf_counter()
        grammars = {} if replies is None else replies.named(rows)
        self._group.order(AccumulateOrder(list(rows), entropy_coef, version, objective.since, grammars))
        near = None if self._reference is None else self._reference.decoder
        sums, fresh = BatchSums(), self.parameters.fresh
        batches = self._batches(rows, objective, version, replies)
        with self._group.together():
            for batch, counts in batches:
                value, figures = evaluate(self.decoder, batch, objective, entropy_coef, near)
                value.backward()  # type: ignore[no-untyped-call]
                sums = sums.plus(figures) if counts else sums
                self._beat()
        self._weights.take_gradient(fresh)
        if not self._group.agree(math.isfinite(sums.loss) and math.isfinite(fresh.sum().item())):
            raise TrainerRefusal(RefusalCode.NONFINITE_GRADIENT, "the micro-batch's loss or gradient is not finite")
        return figures_of(rows, objective, self._everywhere(sums), time.perf_counter() - began)

    def follow(self, order: AccumulateOrder, replies: HeldReplies) -> TrainStats:
        """Add this rank's part of a micro-batch that the leader accumulates."""
        objective, known = self._objective.after(order.since), replies.know(order.grammars)
        stats = self.backward(order.rows, order.entropy_coef, objective, order.version, replies=known)
        if stats.tokens:
            self.accumulator.total.add_(self.parameters.fresh)
        return stats

    def step(self, learning_rate: float) -> Learned:
        if self.accumulator.z > 0.0:
            self._group.order(StepOrder(self.accumulator.z, self.optimizer.steps, learning_rate))
        return super().step(learning_rate)

    def follow_step(self, order: StepOrder) -> None:
        """Move this rank's part as the leader does."""
        self.accumulator.z, self.optimizer.steps = order.z, order.steps
        super().step(order.learning_rate)

    def training_state(self) -> "dict[str, torch.Tensor]":
        """Return what a continuation by any number of ranks needs."""
        names = [FIRST, SECOND]
        if self._weights.compute_dtype != self._weights.dtype:
            names.append(MASTER)
        return {**self.optimizer.state(), **{name: self._collected(name) for name in names}}

    def restore(self, state: "Weights") -> None:
        """Continue from the whole training state that belongs to the weights held."""
        for name in (FIRST, SECOND, MASTER):
            if name in state:
                self.give(name, state[name])
        self.optimizer.steps = int(state["steps"])

    def memory(self) -> "dict[str, torch.Tensor]":
        names = (MASTER, FIRST, SECOND, ACCUMULATED)
        own = {name: self._collected(name) for name in names}
        same = self._weights.compute_dtype == self._weights.dtype
        return own if same else {**own, "compute": own[MASTER].to(self._weights.compute_dtype)}

    def refill(self, memory: "Weights") -> None:
        for name in (MASTER, FIRST, SECOND, ACCUMULATED):
            self.give(name, memory[name])

    def go_on(self, marks: "Mapping[str, Any]") -> None:
        self.optimizer.steps = marks["steps"]
        self.accumulator.go_on(marks["accumulator"])

    def give(self, name: str, whole: "torch.Tensor | None") -> None:
        """Let every rank take its part of a buffer, which the leader has whole."""
        own = restored(self._group, self._weights, name, whole)
        if name == REFERENCE:
            self._reference = self._reference or self._new_reference()
            self._reference.put(own)
            self._reference.decoder.begin()
            return
        self._buffer(name).copy_(own)
        if name == MASTER:
            self.parameters.publish()
            self._weights.decoder.begin()

    def give_up(self, name: str) -> None:
        """Give the leader this rank's part of a buffer."""
        self._group.gather(self._buffer(name), self._weights.cut.longest)

    def _collected(self, name: str) -> "torch.Tensor":
        return collected(self._group, self._weights, name, self._buffer(name))

    def _buffer(self, name: str) -> "torch.Tensor":
        found: dict[str, torch.Tensor] = {
            MASTER: self.parameters.master,
            FIRST: self.optimizer.first,
            SECOND: self.optimizer.second,
            ACCUMULATED: self.accumulator.total,
        }
        return found[name]

    def _norm(self, vector: "torch.Tensor") -> float:
        [squares] = self._group.sum([float(vector.norm()) ** 2])
        return math.sqrt(squares)

    def _batches(
        self, rows: Sequence[TrainRow], objective: Objective, version: int, replies: HeldReplies | None
    ) -> list[tuple[PackedTokens, bool]]:
        """Return this rank's batches, as many as every other rank's: the last ones may count for nothing.

        Raises TrainerRefusal on every rank when a row is no training row.
        """
        own, vocabulary = shares(rows, self._group.ranks)[self._group.rank], self.decoder.vocabulary
        try:
            blocks = blocks_of(own or rows[:1], objective.aggregate, vocabulary, version, replies)
            batches, refused = pack(blocks, vocabulary, self._budget), False
        except TrainerRefusal:
            batches, refused = [], True
        number, any_refused = self._group.most([len(batches), float(refused)])
        if any_refused:
            blocks_of(rows, objective.aggregate, vocabulary, version, replies)  # raises what the rank that met it did
        counting = len(batches) if own else 0
        padded = batches + [batches[0]] * (int(number) - len(batches)) if batches else []
        return [(batch if at < counting else _of_no_weight(batch), at < counting) for at, batch in enumerate(padded)]

    def _everywhere(self, sums: BatchSums) -> BatchSums:
        """Return the figures of all ranks."""
        total = BatchSums(*self._group.sum(list(sums)))
        [widest] = self._group.most([sums.logprob_gap_max])
        return total._replace(logprob_gap_max=widest)


def flat(weights: "Weights", shapes: Shapes) -> "torch.Tensor":
    """Return whole weights as one buffer, in the decoder's order."""
    import torch

    return torch.cat([weights[name].flatten().cpu() for name in shapes])


def collected(group: RankGroup, weights: ShardedWeights, name: str, own: "torch.Tensor") -> "torch.Tensor":
    """Return the whole of a buffer on the leader's host."""
    group.order(Collect(name))
    parts = group.gather(own, weights.cut.longest)
    assert parts is not None, "the leader alone asks for the whole"
    return weights.cut.join(parts)


def restored(group: RankGroup, weights: ShardedWeights, name: str, whole: "torch.Tensor | None") -> "torch.Tensor":
    """Return this rank's part of a buffer that the leader has whole."""
    group.order(Restore(name))
    parts = weights.cut.split(whole.to(weights.dtype)) if whole is not None else None
    return group.scatter(parts, weights.cut.longest, weights.dtype)[: weights.cut.length(group.rank)]


def shares(rows: Sequence[TrainRow], ranks: int) -> list[list[TrainRow]]:
    """Share rows out so that every rank computes about as many tokens; the same on every rank."""
    found: list[list[TrainRow]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for row in sorted(rows, key=lambda each: len(each.prompt) + len(each.response), reverse=True):
        least = load.index(min(load))
        found[least].append(row)
        load[least] += len(row.prompt) + len(row.response)
    return found


def _of_no_weight(batch: PackedTokens) -> PackedTokens:
    return replace(batch, coefficients=batch.coefficients * 0.0, advantages=batch.advantages * 0.0)
