"""The gradient of one optimizer step, gathered micro-batch by micro-batch.

Invariants: it belongs to one epoch (`<version>:<incarnation>`) and takes nothing of another; each micro-batch is in it
wholly and once, or not at all; it is empty after a step and after a bind. Where a backward pass adds to the sum itself,
which spares a buffer of the size of the weights, a micro-batch that breaks off leaves the sum incomplete: it takes and
gives nothing any more until an epoch is opened, and asks to be bound again. Sums are un-normalised, so neither order
nor split of the batch matters: Z, the rows' shares of the normaliser, is closed only when the step is taken.
Floating-point sums do know their order: an ordered accumulator takes micro-batches by rising number only, so that it
ends in the same bits whenever it holds the same set.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flexmarl.contracts.wire import TrainStats
from workers.training.errors import RefusalCode, TrainerRefusal

if TYPE_CHECKING:
    import torch


class Accumulator:
    def __init__(self, fresh: "torch.Tensor", epoch: str, ordered: bool = False, in_place: bool = False) -> None:
        """`fresh` is the buffer that backward passes add to. In place: it is the sum of all micro-batches."""
        import torch

        self.epoch = epoch
        self.z = 0.0
        self.total = fresh if in_place else torch.zeros_like(fresh)
        self._fresh = fresh
        self._incomplete = False
        """Part of a micro-batch is in the sum, or something else."""
        self._ordered = ordered
        self._held: dict[int, tuple[bytes, TrainStats]] = {}

    @property
    def micro_batches(self) -> tuple[int, ...]:
        return tuple(sorted(self._held))

    def open(self, epoch: str) -> None:
        """Forget everything and begin an epoch."""
        self.epoch = epoch
        self.z = 0.0
        self.total.zero_()
        self._incomplete = False
        self._held.clear()

    def marks(self) -> dict[str, object]:
        """Return everything but the sum itself, as JSON can say it."""
        held = {str(number): [content.hex(), stats.model_dump()] for number, (content, stats) in self._held.items()}
        return {"epoch": self.epoch, "z": self.z, "held": held}

    def go_on(self, marks: Mapping[str, Any]) -> None:
        """Be what `marks` told of; the sum was brought already."""
        self.epoch = marks["epoch"]
        self.z = marks["z"]
        self._held = {
            int(number): (bytes.fromhex(content), TrainStats.model_validate(stats))
            for number, (content, stats) in marks["held"].items()
        }

    def go_on_as(self, former: str, epoch: str) -> None:
        """Go on under the epoch of the trainer that took it up. Raises TrainerRefusal when it was another one."""
        self.check_epoch(former)
        self.epoch = epoch

    def known(self, epoch: str, micro_batch: int, content: bytes) -> TrainStats | None:
        """Return the figures of a micro-batch that is in already, None when it may be added.

        Raises TrainerRefusal for another epoch, another content under a number that is taken, or a number whose turn
        is over.
        """
        self.check_epoch(epoch)
        held = self._held.get(micro_batch)
        if held is None:
            self._check_turn(micro_batch)
            return None
        if held[0] != content:
            raise self._refusal(RefusalCode.DUPLICATE, f"micro-batch {micro_batch} is in with other rows")
        return held[1]

    def begin(self) -> None:
        """Make the buffer ready for the backward passes of a micro-batch."""
        if self.total is self._fresh:
            self._incomplete = True
        else:
            self._fresh.zero_()

    def add(self, micro_batch: int, content: bytes, stats: TrainStats) -> None:
        """Take in a micro-batch that `known` has admitted and whose backward passes are done."""
        if self.total is self._fresh:
            self._incomplete = False
        elif stats.tokens:
            self.total.add_(self._fresh)
        self.z += stats.z
        self._held[micro_batch] = (content, stats)

    def check_exactly(self, epoch: str, micro_batches: tuple[int, ...]) -> None:
        """Raise TrainerRefusal unless exactly these micro-batches are in."""
        self.check_epoch(epoch)
        if tuple(sorted(micro_batches)) != self.micro_batches:
            detail = f"asked to step on {sorted(micro_batches)}, holding {list(self.micro_batches)}"
            raise self._refusal(RefusalCode.OTHER_MICRO_BATCHES, detail)

    def check_epoch(self, epoch: str) -> None:
        """Raise TrainerRefusal unless this is the epoch, and the sum is one of whole micro-batches."""
        if self._incomplete:
            raise self._refusal(RefusalCode.NOT_BOUND, "a micro-batch broke off and left the sum incomplete; bind it")
        if epoch != self.epoch:
            raise self._refusal(RefusalCode.OTHER_ACCUMULATOR, f"meant for {epoch!r}, this is {self.epoch!r}")

    def _check_turn(self, micro_batch: int) -> None:
        last = max(self._held, default=micro_batch)
        if self._ordered and micro_batch < last:
            detail = f"micro-batch {micro_batch} comes after {last}, and sums of this run are taken in order"
            raise self._refusal(RefusalCode.OUT_OF_ORDER, detail)

    def _refusal(self, code: RefusalCode, detail: str) -> TrainerRefusal:
        return TrainerRefusal(code, detail, self.epoch, self.micro_batches)
