"""Sums over settled groups. Every member of a group is counted exactly once, by the fate of its winning attempt."""

from collections.abc import Container, Mapping, Sequence
from math import isfinite

from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus
from flexmarl.orchestrator.state.cohort import Tally
from flexmarl.orchestrator.state.tokens import TokenCounts, Undelivered
from flexmarl.orchestrator.state.tree import Counters

FAILURE_LENGTH = 300
"""Characters of an episode's reason that are remembered: the run's own reason repeats them."""


def finished_of(episodes: Sequence[EpisodeOutcome]) -> list[EpisodeOutcome]:
    """Return the finished members in the order of their numbers, one outcome each, with finite scores."""
    by_member = {e.member: e for e in episodes if e.status is EpisodeStatus.FINISHED and _finite(e)}
    return [by_member[member] for member in sorted(by_member)]


def _finite(episode: EpisodeOutcome) -> bool:
    """A score that is no number cannot be compared: its episode counts as failed."""
    return (
        isfinite(episode.team_score)
        and all(map(isfinite, episode.scores.values()))
        and all(isfinite(sample.reward) for sample in episode.samples)
    )


def count_fates(
    counters: Counters, tally: Tally, episodes: Sequence[EpisodeOutcome], finished: int, members: int
) -> None:
    """Settle all members of a group: a member nobody reported, or whose score is no number, failed."""
    cancelled = len({e.member for e in episodes if e.status is EpisodeStatus.CANCELLED})
    cancelled = min(cancelled, members - finished)
    failed = members - finished - cancelled
    counters.finished += finished
    counters.cancelled += cancelled
    counters.failed += failed
    tally.finished += finished
    tally.cancelled += cancelled
    tally.failed += failed
    reasons = (e.reason for e in reversed(episodes) if e.status is EpisodeStatus.FAILED and e.reason)
    tally.last_failure = next(reasons, tally.last_failure)[:FAILURE_LENGTH]


def count_tokens(account: TokenCounts, episodes: Sequence[EpisodeOutcome], trained: Container[str]) -> int:
    """Take in what settled members said and what became of it; returns the tokens that may still reach a loss."""
    finished, left = {id(episode) for episode in finished_of(episodes)}, 0
    for episode in episodes:
        said = sum(sample.tokens for sample in episode.samples)
        own = said_by(episode, trained) if id(episode) in finished else 0
        account.sampled += episode.wasted + said
        cause = _cause(episode)
        account.lose(cause, episode.wasted + (0 if id(episode) in finished else said))
        account.lose(Undelivered.FROZEN, said - own if id(episode) in finished else 0)
        account.count_breaks(episode.breaks)
        left += own
    return left


def _cause(episode: EpisodeOutcome) -> Undelivered:
    """Return why nothing is trained of an episode that did not finish."""
    if episode.abandoned:
        return Undelivered.STALE
    return Undelivered.OVERFLOW if episode.overflowed else Undelivered.FAILED


def said_by(episode: EpisodeOutcome, roles: Container[str]) -> int:
    """Count the tokens that some roles said in an episode."""
    return sum(sample.tokens for sample in episode.samples if sample.role in roles)


def add_episode(tally: Tally, episode: EpisodeOutcome) -> None:
    """Add a finished episode's scores, lengths and facts."""
    score = episode.team_score
    tally.team.total += score
    tally.team.lowest = score if tally.team.lowest is None else min(tally.team.lowest, score)
    tally.team.highest = score if tally.team.highest is None else max(tally.team.highest, score)
    tally.solved += episode.solved
    tally.replaced += episode.replaced
    for role, own in episode.scores.items():
        tally.roles.scores[role] = tally.roles.scores.get(role, 0.0) + own
    for sample in episode.samples:
        tally.roles.tokens[sample.role] = tally.roles.tokens.get(sample.role, 0) + sample.tokens
        tally.roles.turns[sample.role] = tally.roles.turns.get(sample.role, 0) + 1
        tally.tokens += sample.tokens
        tally.samples += not sample.follows
    add_facts(tally, episode.facts)


def add_facts(tally: Tally, facts: Mapping[str, float]) -> None:
    """Add figures by name; what is not finite has no mean."""
    for name, value in facts.items():
        if isfinite(value):
            tally.facts.totals[name] = tally.facts.totals.get(name, 0.0) + value
            tally.facts.counts[name] = tally.facts.counts.get(name, 0) + 1
