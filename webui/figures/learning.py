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
LEAST_SPREAD = 10
"""Values of which quantiles are taken at least."""
BAND_PLACES = 120
"""Places of a band: more than its outline has corners to see."""
MAX_BARS = 24
"""More bars than this are merged to their means: a bar stays wide enough to read."""


def team_reward(
    series: SeriesSet, warmup_steps: int = 0, optimum: float | None = None, dense: SeriesSet | None = None
) -> Figure:
    """Mean team score per step, its spread over neighbouring steps as a band, held-out evaluations as hollow marks.

    `dense` has every point, as far as that is known: the spread of thinned points would be that of extremes.
    """
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
    band = quantile_band(*(dense or series).get("reward/team"))
    shapes, notes = [], _end_labels(series, xs, ys, ey)
    if warmup_steps:
        shape, note = mark(xs[0], f"after {plural(warmup_steps, 'warm-up step')}")
        shapes.append(shape)
        notes.append(note)
    top = max([*ys, *ey, optimum or 0.0])
    return Figure(
        "team_reward",
        "Team reward",
        rising(ys, xs),
        table,
        [
            *(_band(*band) if band else []),
            *_mean_lines(series, xs, ys),
            *(_evaluations(ex, ey) if ex else []),
        ],
        layout(
            margin={"l": 36, "r": 20, "t": 8, "b": 28},
            xaxis=step_axis([*xs, *ex], 0.09),
            yaxis={"range": [min(0.0, *ys), top * 1.08 or 1.0]},
            shapes=shapes,
            annotations=notes,
        ),
        [
            {"label": "mean", "swatch": "q6"},
            *([{"label": "10 to 90 % of steps", "swatch": "q1"}] if band else []),
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


def quantile_band(xs: list[float], ys: list[float]) -> tuple[list[float], list[float], list[float]] | None:
    """Return places with the 10 % and 90 % quantile of the values around each; None for too short a curve."""
    if len(ys) < LEAST_SPREAD:
        return None
    half = max(LEAST_SPREAD // 2, len(ys) // 50)
    at = sorted({round(i * (len(ys) - 1) / (BAND_PLACES - 1)) for i in range(BAND_PLACES)})
    near = [sorted(ys[max(0, i - half) : i + half + 1]) for i in at]
    low = [values[round(0.1 * (len(values) - 1))] for values in near]
    high = [values[round(0.9 * (len(values) - 1))] for values in near]
    return [xs[i] for i in at], low, high


def rising(ys: list[float], xs: list[float]) -> str:
    """Say in words where a score went: fact, size, basis."""
    if not ys:
        return ""
    if len(ys) == 1:
        return f"Reward was {number(ys[0], 3)} in the first step"
    tail = ys[-max(1, min(20, len(ys) // 5)) :]
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


def eval_text(progress: dict[str, float | int | None], evaluated: Points = ([], [])) -> str:
    """Basis of the evaluation tile: the best one, and after which step it was. `evaluated` keeps its extremes."""
    if progress.get("eval_solved") is None:
        return "no evaluation yet"
    steps, values = evaluated
    if not values:
        best = progress.get("eval_best")
        return f"best {percent(best)}" if best is not None else DASH
    best = max(values)
    return f"best {percent(best)}, step {number(steps[values.index(best)])}"


def _same_steps(points: Points, xs: list[float]) -> list[float]:
    """Return the values when they lie at the given steps: series are thinned one by one and may differ in them."""
    return points[1] if points[0] == xs else []


def _at(values: list[float], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
