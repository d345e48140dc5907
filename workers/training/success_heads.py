"""Weights of imitated turns: what of a solved episode is worth saying again (HABC, hierarchical advantage-weighted
behaviour cloning, June 2026), with a turn as the state.

Two heads read the policy where a turn begins, as a critic does. Viability z is the logit of the chance p that the
episode is solved; efficiency v counts the turns to the end of a solved one, below 0. What a turn brought is
A_v = z' - z and A_e = -1 + v' - v, with the next turn's z' and v'; behind the last turn of a solved episode success is
certain, z' = 10, and v' = 0. The weight is 1 + tanh((1 - p) A_v + p A_e), between 0 and 2: where success is unlikely
what matters is that it became likelier, where it is likely that it came nearer. Turns of unsolved episodes weigh 0.

z is fitted to how episodes ended (logistic loss, all turns), v to the turns that there were (Huber loss of width 1,
turns of solved episodes). Published is the target -1 + v' held fixed, for parts of episodes; here episodes are whole,
and of their true lengths the loss has one minimum, where with -1 + v' Adam's momentum goes round in circles. Invariant:
all weights of a step come from the heads as they were when it began.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import tanh
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.advantages import HabcOptions
from workers.training.critic import LinearHeads, Opinion
from workers.training.wire import TrainRow

if TYPE_CHECKING:
    import torch

MOST_LOGIT = 10.0
"""Bound of z in weights, and z where success is certain."""


class SuccessHeads(LinearHeads):
    def __init__(self, width: int, settings: HabcOptions) -> None:
        """`width`: figures that each head reads of a turn."""
        super().__init__(width, 2, settings.critic_rate)
        self._settings = settings

    def opinion(self, turns: Sequence[TrainRow], inputs: "torch.Tensor") -> Opinion:
        """Return the weight of each turn; what stands for its advantage is above 0 where its episode was solved."""
        import torch
        from torch.nn import functional

        viability, efficiency = self.weights.view(2, -1)
        raw, far = inputs @ viability, inputs @ efficiency
        solved = torch.tensor([turn.advantages[0] > 0 for turn in turns])
        logits = raw.clamp(-MOST_LOGIT, MOST_LOGIT)
        values = far.clamp(-float(self._settings.most_turns), 0.0)
        following = torch.tensor(_following(turns), dtype=torch.long)
        next_logits, next_values = (
            torch.cat((each, each.new_tensor([end])))[following] for each, end in ((logits, MOST_LOGIT), (values, 0.0))
        )
        errors = torch.where(solved, far + far.new_tensor(_left(turns)).clamp(max=self._settings.most_turns), 0.0)
        outcome = solved.double()
        gradients = (inputs.t() @ (raw.sigmoid() - outcome), inputs.t() @ errors.clamp(-1.0, 1.0))
        loss = functional.binary_cross_entropy_with_logits(raw, outcome, reduction="sum")
        loss = loss + functional.huber_loss(errors, torch.zeros_like(errors), reduction="sum")
        gates = self._gates(logits, next_logits - logits, next_values - 1.0 - values)
        weights = [own if won else 0.0 for own, won in zip(gates, solved.tolist(), strict=True)]
        return Opinion(weights, torch.cat(gradients), float(loss))

    def _gates(self, logits: "torch.Tensor", likelier: "torch.Tensor", nearer: "torch.Tensor") -> list[float]:
        """Return the gate of each turn; before an episode was solved nothing is known of how far success is."""
        if self.steps < self._settings.warmup_steps:
            return [1.0] * len(logits)
        knows = bool(self.weights.view(2, -1)[1].any())
        steps = nearer.tolist() if knows else [0.0] * len(logits)
        return [gate(*turn) for turn in zip(logits.sigmoid().tolist(), likelier.tolist(), steps, strict=True)]


def gate(chance: float, likelier: float, nearer: float) -> float:
    """Return what a turn weighs, from 0 to 2: `chance` of success when it began, A_v and A_e."""
    return 1.0 + tanh((1.0 - chance) * likelier + chance * nearer)


def _episodes(turns: Sequence[TrainRow]) -> list[list[int]]:
    """Return the places of what a role said in each episode, in the order of turns."""
    found: dict[tuple[str, int], list[int]] = {}
    for place in sorted(range(len(turns)), key=lambda place: turns[place].turn):
        found.setdefault((turns[place].pair, turns[place].member), []).append(place)
    return list(found.values())


def _following(turns: Sequence[TrainRow]) -> list[int]:
    """Return the place of what a role said next in the same episode, one behind all where it said no more."""
    after = {place: behind for own in _episodes(turns) for place, behind in pairwise(own)}
    return [after.get(place, len(turns)) for place in range(len(turns))]


def _left(turns: Sequence[TrainRow]) -> list[int]:
    """Return how many turns of its episode a role had left when each began, that one included."""
    left = {place: len(own) - number for own in _episodes(turns) for number, place in enumerate(own)}
    return [left[place] for place in range(len(turns))]
