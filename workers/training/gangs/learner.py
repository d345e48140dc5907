"""One rank's part of a policy that several trainers share: the learner of a single device on a part of each buffer.

All ranks call the same methods with the same arguments; the leader's calls order the others'. Rows of a micro-batch are
shared out among the ranks, their gradients meet as sums, cut like the weights. What a step needs of the whole - the
figures, the finiteness, the norm - is agreed on by all, so that all clip, refuse and step alike.

Invariants: accumulator, optimizer and masters are the parts of one rank, in the layout of `Cut`; bookkeeping (ids, Z,
epoch, optimizer steps) is the same on every rank; what is collected on the leader and what is restored from it is
whole. A refusal that one rank finds, all ranks raise.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flexmarl.contracts.spec.team import AdamW
from flexmarl.contracts.wire import TrainStats
from workers.models.architecture import Architecture
from workers.training.accumulator import Accumulator
from workers.training.blocks import NO_VERSION, blocks_of
from workers.training.decoder import Decoder
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.gangs.group import Group
from workers.training.gangs.layout import Shapes, names_split
from workers.training.gangs.modules import ShardedWeights
from workers.training.gangs.orders import Accumulate, Collect, Open, Restore, Step, Suspend
from workers.training.learner import TOKEN_BUDGET, Learned, Learner, figures_of
from workers.training.objective import Objective, Sums, evaluate
from workers.training.optimizer import FlatAdamW
from workers.training.packing import Batch, pack
from workers.training.wire import TrainRow

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

MASTER, FIRST, SECOND, REFERENCE = "master", "first", "second", "reference"


class ShardedParameters:
    """This rank's part of the masters; FSDP2 computes with a copy in the precision of the policy."""

    def __init__(self, weights: ShardedWeights, group: Group) -> None:
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
        """Return the whole weights by name, as they are published, on the leader's host; nothing elsewhere."""
        self._group.order(Collect([MASTER]))
        whole = collect(self._group, self._weights, self.master)
        return {} if whole is None else names_split(whole.to(self._weights.compute_dtype), self._weights.shapes)

    def take(self, weights: "Weights") -> None:
        """Go on with whole weights that the leader gives. Masters of another precision stay, being nearer to it."""
        import torch

        if self._weights.compute_dtype != self._weights.dtype:
            return
        self._group.order(Restore([MASTER], -1))
        flat = torch.cat([weights[name].flatten().cpu() for name in self._weights.shapes]) if weights else None
        self.master.copy_(distribute(self._group, self._weights, flat))
        self.publish()


@dataclass(slots=True)
class Kept:
    """What a rank keeps of a policy also while its part of it is suspended."""

    group: Group
    shapes: Shapes
    """Of the whole weights, in the decoder's order."""
    reference: ShardedWeights | None = None
    """What the policy is kept near to, if to anything."""


class ShardedLearner(Learner):
    def __init__(
        self,
        kept: Kept,
        architecture: Architecture,
        objective: Objective,
        optimizer: AdamW,
        precision: str,
        epoch: str,
        beat: Callable[[], object],
    ) -> None:
        """Weights are zeros until they are restored."""
        group = self._group = kept.group
        self._kept = kept
        self._weights = ShardedWeights(kept.shapes, architecture, group, precision)
        self._new_reference = partial(ShardedWeights, kept.shapes, architecture, group, precision, frozen=True)
        self.parameters: Any = ShardedParameters(self._weights, group)
        self.decoder = self._weights.decoder
        self.optimizer = FlatAdamW(self.parameters.master, optimizer)
        self.accumulator = Accumulator(self.parameters.master, epoch)
        self._objective = objective
        self._clip = optimizer.grad_clip_norm
        self._beat = beat
        self._budget = TOKEN_BUDGET.get(group.device.partition(":")[0], TOKEN_BUDGET["cuda"])

    @property
    def shapes(self) -> Shapes:
        return self._kept.shapes

    def accumulate(
        self,
        epoch: str,
        micro_batch: int,
        content: bytes,
        rows: Sequence[TrainRow],
        entropy_coef: float,
        version: int = NO_VERSION,
        reference: Decoder | None = None,
    ) -> TrainStats:
        known = self.accumulator.known(epoch, micro_batch, content)
        if known is not None:
            return known
        self._group.order(Accumulate(epoch, micro_batch, content, list(rows), entropy_coef, version))
        return super().accumulate(epoch, micro_batch, content, rows, entropy_coef, version)

    def gradient(
        self,
        rows: Sequence[TrainRow],
        entropy_coef: float,
        objective: Objective,
        version: int = NO_VERSION,
        reference: Decoder | None = None,
    ) -> "tuple[torch.Tensor, TrainStats]":
        """Return this rank's part of the gradient of all rows, with the figures of all."""
        began = time.perf_counter()
        sums, fresh = Sums(), self.parameters.fresh
        near = None if self._kept.reference is None else self._kept.reference.decoder
        batches = self._batches(rows, objective, version)
        with self._group.together():
            for batch, counts in batches:
                value, figures = evaluate(self.decoder, batch, objective, entropy_coef, near)
                value.backward()  # type: ignore[no-untyped-call]
                sums = sums.plus(figures) if counts else sums
                self._beat()
        self._weights.take_gradient(fresh)
        finite = math.isfinite(sums.loss) and math.isfinite(fresh.sum().item())
        if not self._group.agree(finite):
            raise TrainerRefusal(RefusalCode.NONFINITE_GRADIENT, "the micro-batch's loss or gradient is not finite")
        everywhere = self._everywhere(sums)
        return fresh, figures_of(rows, objective, everywhere, time.perf_counter() - began)

    def step(self, learning_rate: float) -> Learned:
        self._group.order(Step(learning_rate))
        return super().step(learning_rate)

    def open(self, epoch: str) -> None:
        self._group.order(Open(epoch))
        super().open(epoch)

    def training_state(self) -> "dict[str, torch.Tensor]":
        """Return what a continuation by any number of ranks needs, on the leader; the steps alone elsewhere."""
        buffers = [FIRST, SECOND]
        if self._weights.compute_dtype != self._weights.dtype:
            buffers.append(MASTER)
        return {**self.optimizer.state(), **self.collected(buffers)}

    def restore(self, state: "Weights") -> None:
        """Continue from a whole training state."""
        buffers = [name for name in (FIRST, SECOND, MASTER) if name in state]
        self.restored(buffers, int(state["steps"]), state)

    def collected(self, buffers: Sequence[str]) -> "dict[str, torch.Tensor]":
        """Return whole buffers on the leader, nothing elsewhere."""
        self._group.order(Collect(list(buffers)))
        own = {name: collect(self._group, self._weights, self._buffer(name)) for name in buffers}
        return {name: whole for name, whole in own.items() if whole is not None}

    def restored(self, buffers: Sequence[str], steps: int, whole: "Weights") -> None:
        """Take this rank's parts of whole buffers, which the leader has."""
        self._group.order(Restore(list(buffers), steps))
        for name in buffers:
            own = distribute(self._group, self._weights, whole.get(name))
            if name == REFERENCE:
                self._compare_with(own)
            else:
                self._buffer(name).copy_(own)
        if MASTER in buffers:
            self.parameters.publish()
        self.optimizer.steps = steps if steps >= 0 else self.optimizer.steps

    @contextmanager
    def setting_aside(self) -> Iterator[None]:
        self._group.order(Suspend())
        with self._all_or_none():
            yield

    @contextmanager
    def coming_back(self) -> Iterator[None]:
        with self._all_or_none():
            yield
            self.parameters.publish()

    def _norm(self, vector: "torch.Tensor") -> float:
        [squares] = self._group.sum([float(vector.norm()) ** 2])
        return math.sqrt(squares)

    def _batches(self, rows: Sequence[TrainRow], objective: Objective, version: int) -> list[tuple[Batch, bool]]:
        """Return this rank's batches, as many as every other rank's: the last ones may count for nothing.

        Raises TrainerRefusal on every rank when a row is no training row.
        """
        own, vocabulary = shares(rows, self._group.ranks)[self._group.rank], self.decoder.vocabulary
        try:
            blocks = blocks_of(own or rows[:1], objective.aggregate, vocabulary, version)
            batches = pack(blocks, vocabulary, self._budget)
        except TrainerRefusal:
            batches = []
        number, refused = self._group.most([len(batches), float(not batches)])
        if refused:
            blocks_of(rows, objective.aggregate, vocabulary, version)  # raises what the rank that met it did
        counting = len(batches) if own else 0
        padded = batches + [batches[0]] * (int(number) - len(batches))
        return [(batch if at < counting else _of_no_weight(batch), at < counting) for at, batch in enumerate(padded)]

    def _everywhere(self, sums: Sums) -> Sums:
        """Return the figures of all ranks."""
        total = Sums(*self._group.sum(list(sums)))
        [widest] = self._group.most([sums.logprob_gap_max])
        return total._replace(logprob_gap_max=widest)

    def _buffer(self, name: str) -> "torch.Tensor":
        found: dict[str, torch.Tensor] = {
            MASTER: self.parameters.master, FIRST: self.optimizer.first, SECOND: self.optimizer.second
        }  # fmt: skip
        return found[name]

    def _compare_with(self, own: "torch.Tensor") -> None:
        if self._kept.reference is None:
            self._kept.reference = self._new_reference()
        self._kept.reference.put(own)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Do a rank's own work; where it fails on one rank, the gang is over for all."""
        try:
            yield
        except BaseException:
            self._group.close()
            raise
        self._group.agree(True)


def collect(group: Group, weights: ShardedWeights, own: "torch.Tensor") -> "torch.Tensor | None":
    """Return the whole of a buffer on the leader, None elsewhere."""
    parts = group.gather(own, weights.cut.longest)
    return None if parts is None else weights.cut.join(parts)


def distribute(group: Group, weights: ShardedWeights, whole: "torch.Tensor | None") -> "torch.Tensor":
    """Return this rank's part of a buffer that the leader has whole."""
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


def _of_no_weight(batch: Batch) -> Batch:
    return replace(batch, coefficients=batch.coefficients * 0.0, advantages=batch.advantages * 0.0)
