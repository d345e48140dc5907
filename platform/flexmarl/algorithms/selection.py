"""Members of a group that are trained on: those whose scores differ most, as in PODS, or pairs, as in Shuffle-R1.

Invariants: at most as many as asked for; the choice depends on scores and member numbers, never on order of arrival.
What is compared are the chosen members alone (PODS), or all members, before any is chosen (Shuffle-R1).
"""

from collections.abc import Sequence

from flexmarl.contracts.wire import EpisodeOutcome


def max_variance(episodes: Sequence[EpisodeOutcome], keep: int) -> list[EpisodeOutcome]:
    """Return the `keep` episodes whose team scores have the largest variance, in the order given.

    Some number of the highest and the rest of the lowest are always among the best choices, so these are all tried.
    """
    if len(episodes) <= keep:
        return list(episodes)
    ranked = sorted(episodes, key=lambda episode: (episode.team_score, episode.member))
    chosen = max((_ends(ranked, high, keep) for high in _balanced_first(keep)), key=_variance)
    members = {episode.member for episode in chosen}
    return [episode for episode in episodes if episode.member in members]


def widest_pairs(episodes: Sequence[EpisodeOutcome], keep: int) -> list[EpisodeOutcome]:
    """Return the members of the `keep` / 2 widest pairs, in the order given (Shuffle-R1, arXiv 2508.05612).

    With the members ranked by team score, the first is paired with the last, the second with the last but one, and so
    on: pairs come in falling order of the difference of their scores. A member in the middle has no partner and is not
    kept. Equal scores are ranked by member.
    """
    ranked = sorted(episodes, key=lambda episode: (-episode.team_score, episode.member))
    pairs = min(keep, len(ranked)) // 2
    members = {episode.member for episode in (*ranked[:pairs], *ranked[len(ranked) - pairs :])}
    return [episode for episode in episodes if episode.member in members]


def _balanced_first(keep: int) -> list[int]:
    """Return 0..keep from the middle outwards, so that among equals the balanced choice is the first."""
    return sorted(range(keep + 1), key=lambda high: (abs(2 * high - keep), high))


def _ends(ranked: list[EpisodeOutcome], high: int, keep: int) -> list[EpisodeOutcome]:
    return ranked[: keep - high] + ranked[len(ranked) - high :]


def _variance(episodes: list[EpisodeOutcome]) -> float:
    scores = [episode.team_score for episode in episodes]
    mean = sum(scores) / len(scores)
    return sum((score - mean) ** 2 for score in scores)
