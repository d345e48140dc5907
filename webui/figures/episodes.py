"""Drawings of the trajectory pages: score histogram, why an advantage is what it is, log-probabilities of tokens."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webui.formats import number, percent, plural, signed

BINS = 10
HEAT_LEVELS = 8
HEAT_AT = 2.6
"""Negative log-probability (nats) at which a token has the strongest tint."""


@dataclass(frozen=True, slots=True)
class Bin:
    low: float
    high: float
    count: int
    x: float
    height: float
    """Percent of the tallest bin."""
    label: str


def histogram(values: Sequence[float], low: float = 0.0, high: float = 1.0, bins: int = BINS) -> list[Bin]:
    """Count scores in bins of equal width; the last bin holds its upper edge. Empty without values."""
    if not values:
        return []
    low, high = min(low, *values), max(high, *values)
    size = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / size))] += 1
    top = max(counts)
    return [
        Bin(
            round(low + i * size, 4),
            round(low + (i + 1) * size, 4),
            count,
            100.0 * i / bins,
            100.0 * count / top,
            f"{number(low + i * size, 2)} to {number(low + (i + 1) * size, 2)}: {plural(count, 'episode')}",
        )
        for i, count in enumerate(counts)
    ]


@dataclass(frozen=True, slots=True)
class GroupBar:
    member: int
    score: float
    x: float
    width: float
    height: float
    mine: bool


@dataclass(frozen=True, slots=True)
class Why:
    """The members of an episode group and the arithmetic of one member's advantage, in words."""

    bars: list[GroupBar]
    mean: float
    mean_y: float
    advantage: float | None
    text: str


def why(
    group: Sequence[Mapping[str, Any]], member: int, rule: Mapping[str, Any], advantages: Sequence[float]
) -> Why | None:
    """Explain an advantage from the team scores of a group. None for a group of one (evaluation).

    `rule` is the algorithm's advantage. Only when it compares nothing but team scores is the sum below the advantage;
    otherwise the text says what else goes in, and no single figure is claimed.
    """
    scores = [float(row["team_score"]) for row in group]
    if len(scores) < 2:
        return None
    order = sorted(range(len(group)), key=lambda i: (-scores[i], group[i]["member"]))
    low, high = min(0.0, *scores), max(1.0, *scores)
    mean = sum(scores) / len(scores)
    deviation = math.sqrt(sum((s - mean) ** 2 for s in scores) / len(scores))
    width = 100.0 / len(scores)
    bars = [
        GroupBar(
            int(group[i]["member"]),
            scores[i],
            round(place * width, 3),
            round(width * 0.88, 3),
            round(max(3.0, 100.0 * (scores[i] - low) / (high - low)), 2),
            int(group[i]["member"]) == member,
        )
        for place, i in enumerate(order)
    ]
    own = next((s for s, row in zip(scores, group, strict=True) if int(row["member"]) == member), mean)
    plain = rule["team_share"] == 1 and not rule["per_turn"]
    sums = _Sums(own, mean, deviation, len(scores))
    return Why(
        bars,
        mean,
        round(100.0 - 100.0 * (mean - low) / (high - low), 2),
        advantages[0] if plain and advantages else None,
        _plain_words(sums, divide_by_std=rule["divide_by_std"]) if plain else _mixed_words(sums, rule),
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    own: float
    mean: float
    deviation: float
    count: int


def _plain_words(sums: _Sums, *, divide_by_std: bool) -> str:
    text = f"Team score {number(sums.own, 2)} minus group mean {number(sums.mean, 2)}"
    if divide_by_std:
        text += f", divided by group deviation {number(sums.deviation, 2)}"
    episodes = plural(sums.count, "episode")
    if sums.deviation < 1e-6:
        return f"{text} is 0. All {episodes} of this task scored the same, so the group teaches nothing."
    scale = sums.deviation + 1e-6 if divide_by_std else 1.0
    result = signed((sums.own - sums.mean) / scale, 2)
    return f"{text} is {result}. The {episodes} of this task differ, so the group is useful."


def _mixed_words(sums: _Sums, rule: Mapping[str, Any]) -> str:
    text = f"Team score {number(sums.own, 2)}, group mean {number(sums.mean, 2)} over {plural(sums.count, 'episode')}."
    parts = []
    if rule["team_share"] != 1:
        parts.append(f"each role's own score, the team's counts {percent(rule['team_share'])}")
    if rule["per_turn"]:
        parts.append("the reward from each turn on, compared with the same turn of the others")
    return f"{text} The advantages stand beside the turns; they also use {' and '.join(parts)}."


@dataclass(frozen=True, slots=True)
class Token:
    index: int
    text: str
    logprob: float | None
    level: int
    """Tint 0 (certain) to 8 (unsure)."""
    x: float
    width: float
    height: float
    """Bar of the strip below the text, percent."""


def tokens(rows: Iterable[Mapping[str, Any]]) -> list[Token]:
    """Give each token of a response its tint and its bar."""
    rows = list(rows)
    width = 100.0 / max(24, len(rows))
    out = []
    for i, row in enumerate(rows):
        logprob = row.get("logprob")
        share = min(1.0, (max(0.0, -logprob) / HEAT_AT) ** 0.75) if logprob is not None else 0.0
        height = min(100.0, 100.0 * max(0.0, -(logprob or 0.0)) / HEAT_AT)
        level = min(HEAT_LEVELS, math.ceil(share * HEAT_LEVELS - 0.15)) if share > 0.02 else 0
        out.append(
            Token(
                i, row["text"], logprob, level, round(i * width, 3), round(width * 0.76, 3), round(max(2.0, height), 2)
            )
        )
    return out


def pick(rows: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Mapping[str, Any]]:
    """Choose the best, the worst and one other episode of a step; `seed` fixes which other one."""
    if not rows:
        return {}
    ordered = sorted(rows, key=lambda row: (-float(row["team_score"]), str(row["id"])))
    chosen = {"Best": ordered[0]}
    if len(ordered) > 1:
        chosen["Worst"] = ordered[-1]
    if len(ordered) > 2:
        chosen["Random"] = ordered[1 + seed % (len(ordered) - 2)]
    return chosen
