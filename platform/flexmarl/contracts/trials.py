"""What the control plane asks of a node that is to score a reply to a row, and what comes back.

`POST /v1/scores` with the cluster key. What a reply may make hang is computed on nodes, never in a web process.
"""

from typing import Any

from pydantic import Field

from flexmarl.contracts.base import Record

TRIAL_S = 60.0
"""How long all scores of a trial may take together."""


class ScoreTrial(Record):
    """Score a reply."""

    row: str
    """The row, as datasets store it."""
    reply: str
    scores: list[dict[str, Any]] = Field(min_length=1)
    """As a specification holds them."""


class TriedScore(Record):
    """What one score says."""

    value: float | None = None
    """From 0 to 1; None: it was not computed, `why` says for which reason."""
    why: str = ""
    broken: bool = False
    """The score raised."""


class ScoreTrialAnswer(Record):
    """What all scores say."""

    parts: dict[str, TriedScore]
    score: float | None
    """Of the team's answer; None where a part of it is missing."""
    sandbox: str = ""
    """What confines programs on this node."""
