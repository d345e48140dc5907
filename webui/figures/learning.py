"""Charts of learning: team reward with its evaluations, and how much signal the episode groups carry."""

from typing import Any

from webui.figures.base import (
    Figure,
    Points,
    SeriesSet,
    Table,
    bar_axis,
    end_label,
    layout,
    line,
    mark,
    step_axis,
)
from webui.formats import DASH, number, percent, plural

REWARD_SERIES = ("reward/team", "eval/team_score")
GROUP_SERIES = ("groups/useful", "groups/easy", "groups/hard")
NEAR = 0.12
"""Two end labels closer than this share of the scale would touch."""
MAX_BARS = 24
"""More bars than this are merged to their means: a bar stays wide enough to read."""


def team_reward(series: SeriesSet, warmup_steps: int = 0, optimum: float | None = None) -> Figure:
    """Mean team score per step, worst to best episode as a band, held-out evaluations as hollow marks."""
    xs, ys = series.get("reward/team")
    low = _same_steps(series.get("reward/team", stat="min"), xs)
    high = _same_steps(series.get("reward/team", stat="max"), xs)
    ex, ey = series.get("eval/team_score")
    evaluated = dict(zip(ex, ey, strict=True))
    table = Table(
        ["step", "mean", "worst", "best", "evaluation"],
        [[int(x), y, _at(low, i), _at(high, i), evaluated.get(x)] for i, (x, y) in enumerate(zip(xs, ys, strict=True))],
    )
    if not xs:
        return Figure("team_reward", "Team reward", "", table, empty="It appears when the first step is trained.")
    banded = bool(low and high) and _says_something(low, high)
    shapes, notes = [], _end_labels(series, xs, ys, ey)
    if warmup_steps:
        shape, note = mark(xs[0], f"after {plural(warmup_steps, 'warm-up step')}")
        shapes.append(shape)
        notes.append(note)
    top = max([*ys, *ey, *high, optimum or 0.0])
    return Figure(
        "team_reward",
        "Team reward",
        rising(ys, xs),
        table,
        [
            *(_band(xs, low, high) if banded else []),
            *_mean_lines(series, xs, ys),
            *(_evaluations(ex, ey) if ex else []),
        ],
        layout(
            margin={"l": 36, "r": 20, "t": 8, "b": 28},
            xaxis=step_axis([*xs, *ex], 0.09),
            yaxis={"range": [min(0.0, *ys, *low), top * 1.08 or 1.0]},
            shapes=shapes,
            annotations=notes,
        ),
        [
            {"label": "mean", "swatch": "q6"},
            *([{"label": "worst to best", "swatch": "q1"}] if banded else []),
            *([{"label": "evaluation", "swatch": "q4"}] if ex else []),
        ],
    )


def _band(xs: list[float], low: list[float], high: list[float]) -> list[dict[str, Any]]:
    hidden = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    return [
        {"x": xs, "y": high, **hidden},
        {"x": xs, "y": low, **hidden, "fill": "tonexty", "fillcolor": "$band"},
    ]


def _mean_lines(series: SeriesSet, xs: list[float], ys: list[float]) -> list[dict[str, Any]]:
    """The raw line, faint, under the smoothed one; hovering says the raw value."""
    template = "%{customdata:.3f}<extra>mean</extra>"
    return [
        line(xs, ys, {"width": 1, "color": "$q6"}, opacity=0.28, hoverinfo="skip"),
        line(xs, series.soft(ys), {"width": 2, "color": "$q6"}, name="mean", customdata=ys, hovertemplate=template),
    ]


def _evaluations(xs: list[float], ys: list[float]) -> list[dict[str, Any]]:
    return [
        {
            "x": xs,
            "y": ys,
            "mode": "lines+markers",
            "name": "evaluation",
            "line": {"width": 1.2, "dash": "dot", "color": "$q4"},
            "marker": {"size": 5.5, "color": "$s", "line": {"width": 1.5, "color": "$q4"}},
            "cliponaxis": False,
            "hovertemplate": "%{y:.3f}<extra>evaluation</extra>",
        }
    ]


def _end_labels(series: SeriesSet, xs: list[float], ys: list[float], ey: list[float]) -> list[dict[str, Any]]:
    """Last values at the line ends, pushed apart where they would touch."""
    end = series.soft(ys)[-1]
    if not ey:
        return [end_label(xs[-1], end, number(ys[-1], 3), strong=True)]
    near = abs(ey[-1] - end) < NEAR * max([*ys, *ey, 1e-9])
    apart = (6 if ey[-1] >= end else -6) if near else 0
    return [
        end_label(xs[-1], end, number(ys[-1], 3), strong=True, shift=-apart),
        end_label(xs[-1], ey[-1], number(ey[-1], 3), shift=apart),
    ]


def _says_something(low: list[float], high: list[float]) -> bool:
    """Say whether a band from worst to best is ever narrower than the whole scale; else it is only a grey box."""
    scale = max(high) - min(low)
    return sum(h - lo < 0.98 * scale for lo, h in zip(low, high, strict=True)) >= len(low) / 4


def rising(ys: list[float], xs: list[float]) -> str:
    """Say in words where a score went: fact, size, basis."""
    if not ys:
        return ""
    if len(ys) == 1:
        return f"Reward was {number(ys[0], 3)} in the first step"
    tail = ys[-20:]
    now, first = sum(tail) / len(tail), ys[0]
    change = now - first
    word = "flat" if abs(change) < 0.02 else "rose" if change > 0 else "fell"
    steps = plural(int(xs[-1] - xs[0]) + 1, "step")
    if word == "flat":
        return f"Reward is flat at {number(now, 3)} over {steps}"
    return f"Reward {word} from {number(first, 3)} to {number(now, 3)} in {steps}"


def group_signal(series: SeriesSet) -> Figure:
    """Share of episode groups that teach something, against those everybody solves and those nobody solves."""
    xs, useful = series.get("groups/useful", stat="share")
    easy = _same_steps(series.get("groups/easy", stat="share"), xs) or [0.0] * len(xs)
    hard = _same_steps(series.get("groups/hard", stat="share"), xs) or [0.0] * len(xs)
    table = Table(
        ["step", "useful", "easy", "hard"],
        [[int(x), useful[i], easy[i], hard[i]] for i, x in enumerate(xs)],
    )
    if not xs:
        return Figure("group_signal", "Group signal", "", table, empty="It appears when the first step is trained.")
    bars = binned(xs, [useful, easy, hard])
    data = [
        {
            "type": "bar",
            "x": bars[0],
            "y": [100 * value for value in values],
            "name": name,
            "marker": {"color": f"$k{i}", "line": {"width": 0}},
            "hovertemplate": "%{y:.0f} %<extra>" + name + "</extra>",
        }
        for i, (name, values) in enumerate(zip(("useful", "easy", "hard"), bars[1:], strict=True), start=1)
    ]
    last = useful[-20:]
    return Figure(
        "group_signal",
        "Group signal",
        f"{percent(sum(last) / len(last))} of groups were useful in the last {plural(len(last), 'step')}",
        table,
        data,
        layout(
            barmode="stack",
            bargap=0.22,
            margin={"l": 44, "r": 10, "t": 8, "b": 28},
            yaxis={"range": [0, 100], "ticksuffix": " %"},
            xaxis=bar_axis(bars[0]),
        ),
        [{"label": name, "swatch": f"k{i}"} for i, name in enumerate(("useful", "easy", "hard"), start=1)],
    )


def binned(xs: list[float], columns: list[list[float]], bars: int = MAX_BARS) -> list[list[float]]:
    """Merge points to at most `bars` means of equal size; the first list holds the middle of each bin."""
    size = -(-len(xs) // bars)
    chunks = [slice(i, i + size) for i in range(0, len(xs), size)]
    return [[_mean(column[chunk]) for chunk in chunks] for column in ([*xs], *columns)]


def eval_text(progress: dict[str, float | int | None]) -> str:
    """Basis of the evaluation tile."""
    if progress.get("eval_solved") is None:
        return "no evaluation yet"
    best = progress.get("eval_best")
    return f"best {percent(best)}, at {progress.get('eval_step') or 0}" if best is not None else DASH


def _same_steps(points: Points, xs: list[float]) -> list[float]:
    """Return the values when they lie at the given steps: series are thinned one by one and may differ in them."""
    return points[1] if points[0] == xs else []


def _at(values: list[float], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
