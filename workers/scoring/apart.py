"""Scores that are computed apart: which class computes which, and a row's reply judged by all of them at once.

Invariant: a part is a number with its reason, or `RewardMissing` is raised: this host's fault is never a reply's.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from flexmarl.algorithms.scores import ScorePart
from flexmarl.contracts.specification.scores import CodeOptions, MathOptions, ScoreOptions
from flexmarl.language.answers import MOST_CHARACTERS
from flexmarl.language.dataset_rows import DatasetRow
from workers.scoring.code import CodeScore
from workers.scoring.math import MathScore

_Own = TypeVar("_Own", bound="ApartScorer")


class ApartScore(Protocol):
    """One way to judge replies, under deadlines of its own."""

    async def score(self, row: DatasetRow, reply: str) -> ScorePart:
        """Judge a reply, whatever it is. Raises ScoringFailed where this host cannot."""

    async def close(self) -> None:
        """End what is running."""


class ApartScorer:
    """Judges replies by the scores of a specification that are computed apart."""

    def __init__(self, options: Sequence[ScoreOptions]) -> None:
        self._scores = {one.label: _made(one) for one in options if one.computed == "apart"}

    def __deepcopy__(self: _Own, memo: dict[int, Any]) -> _Own:
        """Return itself: nothing of an episode is in it."""
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._scores)

    async def parts(self, row: DatasetRow, reply: str) -> dict[str, ScorePart]:
        """Judge a reply. Raises ScoringFailed where a part cannot be computed here."""
        read = reply[:MOST_CHARACTERS]
        found = await asyncio.gather(*(score.score(row, read) for score in self._scores.values()))
        return dict(zip(self._scores, found, strict=True))

    async def close(self) -> None:
        """End what is running."""
        for score in self._scores.values():
            await score.close()


def _made(options: ScoreOptions) -> ApartScore:
    match options:
        case MathOptions():
            return MathScore(options)
        case CodeOptions():
            return CodeScore(options)
    raise LookupError(f"no score named {options.type!r} is computed apart")
