"""Episodes whose turns are limited: the account of one that was cut off, and what is said of the others."""

from dataclasses import replace

from workers.rollout.environments.base import Outcome

TRUNCATED = "truncated"
"""Fact of episodes whose turns were limited: 1 where one was cut off, else 0."""


def truncated(turns: int, last: tuple[str, int]) -> Outcome:
    """Return the account of an episode that was cut off after so many turns, of which `last` is the last by role and
    number: nobody knows how it would have ended, and it solved nothing."""
    said = f"The episode ends here, after {turns} turns: no success of its task was longer."
    return Outcome({}, 0.0, False, facts={TRUNCATED: 1.0}, remarks={last: said})


def ended_itself(outcome: Outcome) -> Outcome:
    """Return the account of an episode that its environment ended by its limit."""
    return replace(outcome, facts={**outcome.facts, TRUNCATED: 0.0})
