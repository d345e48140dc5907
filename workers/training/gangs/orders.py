"""What the leader of a gang tells its other ranks to do with it. A closed union, in msgpack.

Invariant: each order stands for one method that all ranks call with the same arguments, in the order of the leader's
calls. What an order does not carry - weights, states, gradients - follows through the process group.
"""

import msgspec

from workers.training.wire import TrainRow


class Build(msgspec.Struct, tag="build"):
    """Hold a part of a policy; its weights follow, then those of its reference."""

    epoch: str
    shapes: dict[str, list[int]]
    """Of the whole weights, in the decoder's order."""
    reference: bool


class Accumulate(msgspec.Struct, tag="accumulate"):
    epoch: str
    micro_batch: int
    content: bytes
    rows: list[TrainRow]
    """Of the whole micro-batch; each rank takes its share."""
    entropy_coef: float
    version: int


class Step(msgspec.Struct, tag="step"):
    learning_rate: float


class Open(msgspec.Struct, tag="open"):
    epoch: str


class Collect(msgspec.Struct, tag="collect"):
    """Give the leader this rank's parts of named buffers."""

    buffers: list[str]


class Restore(msgspec.Struct, tag="restore"):
    """Take this rank's parts of named buffers from the leader."""

    buffers: list[str]
    steps: int
    """Optimizer steps behind them; -1: as before."""


class Suspend(msgspec.Struct, tag="suspend"):
    """Take this rank's part off its device."""


class Resume(msgspec.Struct, tag="resume"):
    """Bring it back."""


Order = Build | Accumulate | Step | Open | Collect | Restore | Suspend | Resume
