"""A learned baseline: what a policy expects to earn when a turn begins, and advantages by what it did not expect.

Values are linear in what the policy's own head reads at the last token of a prompt, held fixed: the critic reads the
policy and never moves it, and the policy never moves the critic. A turn is one step: with r what it earned and V' the
value of the role's next turn in the episode, 0 behind the last one, d = r + gamma V' - V, A = d + gamma lambda A', and
the critic is drawn towards A + V. Advantages of a step all come from the critic as it was when the step began.

Invariants: a micro-batch holds an episode's turns of a role wholly, since cuts hold whole episodes; the critic's sums
hold exactly the micro-batches that the accumulator beside it holds, and are closed by the same step; its state is part
of the training state, so that a restored or suspended policy goes on bit for bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import structs

from flexmarl.contracts.specification.advantages import GaeOptions
from flexmarl.contracts.specification.team import AdamW
from workers.training.optimizer import FlatAdamW
from workers.training.wire import TrainRow

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Judged:
    """What a micro-batch adds to the critic."""

    gradient: "torch.Tensor"
    rows: int
    """Turns"""
    loss: float
    """Of what the heads expect, summed over turns."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What heads think of some turns."""

    advantages: list[float]
    gradient: "torch.Tensor"
    """Of the heads' loss by their weights, flat."""
    loss: float


class LinearHeads(ABC):
    """Heads that read what the policy's own head reads where a turn begins, and are fitted beside it."""

    def __init__(self, width: int, heads: int, rate: float) -> None:
        """`width`: figures that each head reads of a turn; `rate`: learning rate."""
        import torch

        self.weights = torch.zeros(heads * (width + 1), dtype=torch.float64)
        """Head by head, of each figure, and what is expected of every turn."""
        self._rate = rate
        self._optimizer = FlatAdamW(self.weights, AdamW(weight_decay=0.0))
        self._total = torch.zeros_like(self.weights)
        self._rows = 0

    @abstractmethod
    def opinion(self, turns: Sequence[TrainRow], inputs: "torch.Tensor") -> Opinion:
        """Judge rows of one turn each; `inputs`: [turns, width + 1]."""

    @property
    def steps(self) -> int:
        """Return how many steps were taken."""
        return self._optimizer.steps

    def judge(self, rows: Sequence[TrainRow], read: "torch.Tensor") -> tuple[list[TrainRow], Judged]:
        """Turn what turns earned, which stands where their advantage will, into advantages. `read`: [turns, width]."""
        import torch

        firsts = [0, *accumulate(len(row.advantages) for row in rows)]
        said = [(number, turn) for number, row in enumerate(rows) for turn in row.said()]
        turns = [_one_turn(rows[number], turn) for number, turn in said]
        seen = read[[firsts[number] + turn for number, turn in said]]
        inputs = torch.cat((seen, torch.ones(len(turns), 1, dtype=torch.float64)), 1)
        opinion = self.opinion(turns, inputs)
        found = [structs.replace(row, advantages=[0.0] * len(row.advantages)) for row in rows]
        for (number, turn), advantage in zip(said, opinion.advantages, strict=True):
            found[number].advantages[turn] = advantage
        return found, Judged(opinion.gradient, len(turns), opinion.loss)

    def gather(self, judged: Judged, first: bool) -> None:
        """Take a micro-batch in; the first one of an accumulator begins a new sum."""
        if first:
            self._total.zero_()
            self._rows = 0
        self._total.add_(judged.gradient)
        self._rows += judged.rows

    def step(self) -> None:
        """Move along the mean of what was gathered."""
        if self._rows:
            self._optimizer.step(self._total / self._rows, self._rate)

    def state(self) -> "torch.Tensor":
        """Return everything between two steps, as one row: weights, their moments, then the steps."""
        import torch

        moments = torch.stack((self.weights, self._optimizer.first, self._optimizer.second)).flatten()
        return torch.cat((moments, torch.tensor([float(self._optimizer.steps)], dtype=torch.float64)))

    def restore(self, state: "torch.Tensor") -> None:
        """Continue from what `state` returned."""
        weights, first, second = state[:-1].view(3, -1)
        self.weights.copy_(weights)
        self._optimizer.first.copy_(first)
        self._optimizer.second.copy_(second)
        self._optimizer.steps = int(state[-1])

    def marks(self) -> dict[str, object]:
        """Return everything, what is gathered included, as JSON can say it."""
        held = {"state": self.state(), "total": self._total}
        return {name: tensor.numpy().tobytes().hex() for name, tensor in held.items()} | {"rows": self._rows}

    def go_on(self, marks: Mapping[str, Any]) -> None:
        """Be what `marks` told of."""
        import torch

        state, total = (
            torch.frombuffer(bytearray.fromhex(marks[name]), dtype=torch.float64) for name in ("state", "total")
        )
        self.restore(state)
        self._total.copy_(total)
        self._rows = marks["rows"]


class Critic(LinearHeads):
    """One head: what a turn and those after it earn."""

    def __init__(self, width: int, settings: GaeOptions) -> None:
        """`width`: figures that it reads of a turn."""
        super().__init__(width, 1, settings.critic_rate)
        self._settings = settings

    def opinion(self, turns: Sequence[TrainRow], inputs: "torch.Tensor") -> Opinion:
        """Return generalised advantages, with half the squared distance of values from what they are drawn to."""
        import torch

        advantages = unexpected(turns, (inputs @ self.weights).tolist(), self._settings)
        distances = torch.tensor([-advantage for advantage in advantages], dtype=torch.float64)
        return Opinion(advantages, inputs.t() @ distances, float(distances.square().sum()) / 2.0)


def _one_turn(row: TrainRow, turn: int) -> TrainRow:
    """Return a row that stands for one of its turns: whose it is, and what it earned."""
    return structs.replace(row, turn=row.turn_at(turn), advantages=[row.advantages[turn]])


def unexpected(rows: Sequence[TrainRow], values: Sequence[float], settings: GaeOptions) -> list[float]:
    """Return each turn's generalised advantage, backwards through what a role did in an episode; one turn in a row."""
    order = sorted(range(len(rows)), key=lambda number: (rows[number].pair, rows[number].member, -rows[number].turn))
    found = [0.0] * len(rows)
    behind: tuple[str, int] | None = None
    value = advantage = 0.0
    for number in order:
        row = rows[number]
        if (row.pair, row.member) != behind:
            behind, value, advantage = (row.pair, row.member), 0.0, 0.0
        surprise = row.advantages[0] + settings.gamma * value - values[number]
        advantage = surprise + settings.gamma * settings.gae_lambda * advantage
        value, found[number] = values[number], advantage
    return found
