"""Preferences between two members of a group, as weights of their turns.

Of each pair the loss is a function of the lead h = log p / p_ref of all that the better member said, less that of the
worse one: -log sigmoid(beta h) (DPO, arXiv 2305.18290), or (h - 1 / (2 beta))^2 (IPO, arXiv 2310.12036). In MNPO (arXiv
2509.23102) log p_ref is the weighted sum of what the reference and past policies say. The gradient is that of -A log p
with A = -dloss/dh for turns of the better member, held fixed, and -A for those of the worse one. So h is computed
first, without gradient; then every row goes its own way. That costs one more forward pass of each model, and makes the
gradient exact however rows are packed.

Invariant: both members of a pair are in one micro-batch, since cuts hold whole groups; half a pair is refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from flexmarl.contracts.specification.losses import OnlineDpoOptions
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.held_replies import HeldReplies
from workers.training.objective import Objective, token_scores
from workers.training.packing import PackedTokens
from workers.training.row_figures import each_turn, turn_sums
from workers.training.wire import TrainRow

if TYPE_CHECKING:
    import torch

    from workers.training.trained_model import TokenScorer, TrainedModel


@dataclass(frozen=True, slots=True)
class Weighed:
    advantages: list[list[float]]
    """Of each row's turns, in the order given: 0 where a turn is of no pair."""
    loss: float
    """Summed over pairs."""
    pairs: int


def weigh(rows: Sequence[TrainRow], log_ratios: Sequence[float], settings: OnlineDpoOptions) -> Weighed:
    """Turn signs into weights: advantages above 0 are of the better member of their pair, below 0 of the worse one.

    `log_ratios`: of each turn of each row, the sum of its tokens' log p / p_ref. Raises TrainerRefusal for half a pair.
    """
    sides: dict[str, list[float | None]] = {}
    turns = ((row.pair, advantage) for row in rows for advantage in row.advantages)
    for (pair, advantage), log_ratio in zip(turns, log_ratios, strict=True):
        if advantage:
            side = sides.setdefault(pair, [None, None])
            which = int(advantage < 0)
            side[which] = (side[which] or 0.0) + log_ratio
    drives: dict[str, float] = {}
    loss = 0.0
    for pair, (better, worse) in sides.items():
        if better is None or worse is None:
            raise TrainerRefusal(RefusalCode.MALFORMED_ROW, f"of the pair {pair!r} one member alone is here")
        own, drives[pair] = _FORMS[settings.form](better - worse, settings.beta)
        loss += own
    advantages = [[math.copysign(1.0, a) * drives[row.pair] if a else 0.0 for a in row.advantages] for row in rows]
    return Weighed(advantages, loss, len(drives))


def _sigmoid(lead: float, beta: float) -> tuple[float, float]:
    """Return -log sigmoid(beta h) and its drive, -dloss/dh. No lead overflows."""
    tail = math.exp(-abs(beta * lead))
    return max(-beta * lead, 0.0) + math.log1p(tail), beta * (tail if lead > 0 else 1.0) / (1.0 + tail)


def _ipo(lead: float, beta: float) -> tuple[float, float]:
    """Return (h - 1 / (2 beta))^2 and its drive, which is below 0 where the lead is larger than that."""
    missing = 0.5 / beta - lead
    return missing**2, 2.0 * missing


_FORMS = {"sigmoid": _sigmoid, "ipo": _ipo, "mnpo": _ipo}


def preferred(
    rows: Sequence[TrainRow],
    decoder: "TrainedModel",
    reference: "TokenScorer | None",
    objective: Objective,
    budget: int,
    replies: HeldReplies | None = None,
) -> tuple[list[TrainRow], Weighed]:
    """Return the rows of pairs with their weights as advantages; members of no pair are left out."""
    if reference is None and objective.algorithm.most_compared:
        raise TrainerRefusal(RefusalCode.STATE, "pairs are compared with earlier versions, and the trainer has none")

    def log_ratios(batch: PackedTokens) -> "torch.Tensor":
        own = token_scores(decoder, batch)[0]
        return turn_sums(batch, own if reference is None else own - token_scores(reference, batch)[0])

    paired = [row for row in rows if any(row.advantages) and row.response]
    found = each_turn(paired, decoder.vocabulary, budget, log_ratios, 1, replies)
    weighed = weigh(paired, found[:, 0].tolist(), objective.loss.options)
    weighty = zip(paired, weighed.advantages, strict=True)
    return [structs.replace(row, advantages=advantages) for row, advantages in weighty], weighed
