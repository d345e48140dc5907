"""What became of the tokens that were sampled for training: each reached a loss, did not for a cause, or still waits.

Invariant: sampled = delivered + lost by cause + waiting, and what waits lies in rows that are settled and not stepped
on (checked against these by `run.invariants`). Evaluations are no part of it.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Undelivered(StrEnum):
    """Why tokens reached no loss."""

    FROZEN = "frozen"
    """A seat said them whose policy is not trained."""
    FAILED = "failed"
    """Their try of an episode failed, was cancelled or had no score."""
    OVERFLOW = "overflow"
    """Their episode ended because a conversation no longer fitted the context of its model."""
    INCOMPLETE = "incomplete"
    """Too few members of their group finished."""
    FILTERED = "filtered"
    """The group filter refused their group, or their member was not selected."""
    STALE = "stale"
    """They grew older than the bound allows."""
    OVERTAKEN = "overtaken"
    """Their policy had stepped by its own clock."""
    SURPLUS = "surplus"
    """No step needed their group."""
    ENDED = "ended"
    """The run ended before their step."""


@dataclass(slots=True)
class TokenCounts:
    sampled: int = 0
    delivered: int = 0
    """In rows on which an optimizer step was taken."""
    lost: dict[str, int] = field(default_factory=dict)
    """Cause (`Undelivered`) -> tokens."""
    breaks: dict[str, int] = field(default_factory=dict)
    """Cause -> chains that ended before their episode did. That loses no token: the next chain reads them again."""

    @property
    def waiting(self) -> int:
        """Count the tokens of rows whose step is not taken yet."""
        return self.sampled - self.delivered - sum(self.lost.values())

    def lose(self, cause: Undelivered, tokens: int) -> None:
        if tokens:
            self.lost[cause] = self.lost.get(cause, 0) + tokens

    def take_back(self, tokens: int) -> None:
        """Deliver what seemed lost when the run ended: its step had been committed."""
        self.lost[Undelivered.ENDED] -= tokens
        self.delivered += tokens

    def count_breaks(self, breaks: dict[str, int]) -> None:
        for cause, count in breaks.items():
            self.breaks[cause] = self.breaks.get(cause, 0) + count
