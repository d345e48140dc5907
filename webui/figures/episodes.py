"""Drawings of the trajectory pages: score histogram, and why an advantage is what it is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webui.formats import number, percent, plural, signed


@dataclass(frozen=True, slots=True)
class Bin:
    low: float
    high: float
    count: int
    x: float
    width: float
    height: float
    """Percent of the tallest bin."""
    label: str
    chosen: bool
    """Whether the filter in force holds it."""


def bins(rows: Sequence[Mapping[str, float]], chosen: tuple[float | None, float | None]) -> list[Bin]:
    """Draw counted scores as bars; `chosen` is the range that the list is filtered to."""
    if not rows:
        return []
    top = max(row["count"] for row in rows) or 1
    low, high = chosen
    filtered = low is not None or high is not None
    return [
        Bin(
            row["low"],
            row["high"],
            int(row["count"]),
            round(100.0 * i / len(rows), 3),
            round(94.0 / len(rows), 3),
            100.0 * row["count"] / top,
            f"{number(row['low'], 2)} to {number(row['high'], 2)}: {plural(int(row['count']), 'episode')}",
            filtered and (low is None or row["low"] >= low - 1e-9) and (high is None or row["high"] <= high + 1e-9),
        )
        for i, row in enumerate(rows)
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

    `rule` is the algorithm's credit. Only when it compares nothing but team scores is the sum below the advantage;
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
    others = _beside_team_scores(rule)
    sums = _Sums(own, mean, deviation, len(scores))
    return Why(
        bars,
        mean,
        round(100.0 - 100.0 * (mean - low) / (high - low), 2),
        advantages[0] if advantages and not others else None,
        _mixed_words(sums, others) if others else _plain_words(sums, divide_by_std=rule.get("divide_by_std", False)),
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
        return f"{text} is 0. All {episodes} of this task scored the same, so the group gives no gradient."
    scale = sums.deviation + 1e-6 if divide_by_std else 1.0
    result = signed((sums.own - sums.mean) / scale, 2)
    return f"{text} is {result}. The {episodes} of this task differ, so the group is useful."


def _beside_team_scores(rule: Mapping[str, Any]) -> list[str]:
    """Name what else decides an advantage than a team score and its group's mean."""
    parts = []
    if rule["team_share"] != 1:
        parts.append(f"each role's own score, the team's counts {percent(rule['team_share'])}")
    if rule["per_turn"]:
        parts.append("the reward from each turn on, compared with the same turn of the others")
    if rule.get("type", "grpo") == "gae":
        parts.append("the trainer's critic, whose expected values are subtracted from the figures next to the turns")
    elif rule.get("type", "grpo") == "habc":
        parts.append("whether the episode was solved, and how likely and how near the trainer's heads expected it")
    elif rule.get("type", "grpo") != "grpo":
        parts.append(f"the estimator {rule['type']}")
    if rule.get("baseline_over", "episodes") != "episodes":
        parts.append("a mean over rows instead of episodes")
    if rule.get("group_key", "episode_group") != "episode_group":
        parts.append(f"the group key {rule['group_key']}")
    if rule.get("shaping", "none") == "majority_vote":
        parts.append("the vote of the group, which takes the place of all scores")
    elif rule.get("shaping", "none") != "none":
        parts.append(f"the shaping {rule['shaping']}")
    return parts + _beside_members(rule)


def _beside_members(rule: Mapping[str, Any]) -> list[str]:
    """Name what decides an advantage of who is compared."""
    parts = []
    if rule.get("branches", "none") != "none":
        parts.append("the reward of each answer, since all members answered the turns of one episode")
    if rule.get("continues"):
        parts.append("the tree of the group: a turn is compared with what other members said in its place")
    if rule.get("keep_members") and rule.get("keep_rule", "variance") == "variance":
        parts.append(f"only the {rule['keep_members']} members whose scores differ most")
    if rule.get("rescues"):
        parts.append("an earlier success of the task, where there is one, since nobody of the group solved it")
    return parts


def _mixed_words(sums: _Sums, others: Sequence[str]) -> str:
    text = f"Team score {number(sums.own, 2)}, group mean {number(sums.mean, 2)} over {plural(sums.count, 'episode')}."
    return f"{text} The advantages are shown next to the turns; they also use {' and '.join(others)}."


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
