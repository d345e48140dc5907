"""What the leader of a gang tells its other ranks to do with it. A closed union, in msgpack.

Invariant: each order stands for a piece of work that all ranks do together, in the order of the leader's calls. What
an order does not carry - weights, states, gradients - follows through the process group. Bookkeeping is the leader's
alone: which micro-batches are in, in which epoch, and how many steps were taken.
"""

import msgspec

from workers.training.wire import TrainRow


class Build(msgspec.Struct, tag="build"):
    """Hold a part of a policy; what it consists of follows."""

    shapes: dict[str, list[int]]
    """Of the whole weights, in the decoder's order."""
    tokenizer: bytes = b""
    """tokenizer.json of the policy."""


class AccumulateOrder(msgspec.Struct, tag="accumulate"):
    rows: list[TrainRow]
    """Of the whole micro-batch; each rank takes its share."""
    entropy_coef: float
    version: int
    since: int = 0
    """Steps taken on the rows' cohort before this one."""
    grammars: dict[str, str] = {}
    """What replies of the rows were held to: digest -> `ReplyGrammar` as JSON."""


class StepOrder(msgspec.Struct, tag="step"):
    """Move the weights by what is accumulated."""

    z: float
    steps: int
    """Optimizer steps behind this one."""
    learning_rate: float


class Open(msgspec.Struct, tag="open"):
    """Forget what is accumulated."""


class Collect(msgspec.Struct, tag="collect"):
    """Give the leader this rank's part of a buffer."""

    buffer: str


class Restore(msgspec.Struct, tag="restore"):
    """Take this rank's part of a buffer from the leader."""

    buffer: str


Order = Build | AccumulateOrder | StepOrder | Open | Collect | Restore
