"""Charts of the pipeline: where a step's time goes, how stale samples were, tokens per second."""

from collections import Counter
from typing import Any

from webui.figures.base import (
    Agent,
    Figure,
    SeriesSet,
    Table,
    bar_axis,
    dash,
    end_label,
    layout,
    lie_together,
    line,
    step_axis,
    whole_ticks,
)
from webui.formats import duration, number, plural, si

TIME_SERIES = ("time/step", "time/rollout", "time/train_tail", "time/publish", "time/wait_samples")
STALENESS_SERIES = ("staleness/own_max",)
THROUGHPUT_SERIES = ("throughput/tokens", "throughput/samples")
_PARTS = (("time/rollout", "rollout"), ("time/train_tail", "training tail"), ("time/publish", "publication"))
"""What a step's time is made of, one after the other: until the last group settled, until the last optimizer step,
until the new weights are served. Training that overlaps rollout lies inside the first part."""
LAST_STEPS = 40


def step_time(series: SeriesSet) -> Figure:
    """Seconds of each of the last steps, split into its parts."""
    xs, total = series.get("time/step")
    columns = [series.get(name) for name, _ in _PARTS]
    waits = series.get("time/wait_samples")
    table = Table(
        ["step", "step, s", *(f"{label}, s" for _, label in _PARTS), "trainer waiting, s"],
        [[int(x), total[i], *(_nth(column, x) for column in columns), _nth(waits, x)] for i, x in enumerate(xs)],
    )
    if not xs:
        return Figure("step_time", "Time per step, s", "", table, empty="It appears when the first step ends.")
    shown = xs[-LAST_STEPS:]
    data = [
        {
            "type": "bar",
            "x": shown,
            "y": [_nth(column, x) or 0.0 for x in shown],
            "name": label,
            "marker": {"color": f"$k{i}", "line": {"width": 0}},
            "hovertemplate": "%{y:.2f} s<extra>" + label + "</extra>",
        }
        for i, ((_, label), column) in enumerate(zip(_PARTS, columns, strict=True), start=1)
    ]
    recent = sorted(total[-20:])
    return Figure(
        "step_time",
        "Time per step, s",
        f"Half of the last {plural(len(recent), 'step')} took less than {duration(recent[len(recent) // 2])}",
        table,
        data,
        layout(
            barmode="stack",
            margin={"l": 34, "r": 10, "t": 8, "b": 28},
            xaxis=bar_axis(shown),
            yaxis={"rangemode": "tozero", "nticks": 4},
        ),
        [{"label": label, "swatch": f"k{i}"} for i, label in enumerate(("rollout", "training", "weights"), start=1)],
    )


def staleness(series: SeriesSet, agents: list[Agent], bound: int) -> Figure:
    """How many steps had which highest own lag, per policy, against the bound."""
    policies: dict[str, Agent] = {}
    for agent in agents:
        policies.setdefault(agent.policy, agent)
    counts = {name: Counter(int(v) for v in series.get("staleness/own_max", name, "max")[1]) for name in policies}
    if not any(counts.values()):
        counts = {name: Counter(int(v) for v in series.get("staleness/own_max", name)[1]) for name in policies}
    highest = max([bound + 2, *(lag for count in counts.values() for lag in count)])
    lags = list(range(highest + 1))
    table = Table(["versions behind", *policies], [[lag, *(counts[name][lag] for name in policies)] for lag in lags])
    if not any(counts.values()):
        return Figure(
            "staleness", "Staleness at batch cut", "", table, empty="It appears when the first step is trained."
        )
    beyond = sum(n for count in counts.values() for lag, n in count.items() if lag > bound)
    data = [
        {
            "type": "bar",
            "x": [str(lag) for lag in lags],
            "y": [counts[name][lag] for lag in lags],
            "name": name,
            "marker": {"color": f"$a{agent.hue}"},
            "hovertemplate": "%{y} steps<extra>" + name + "</extra>",
        }
        for name, agent in policies.items()
    ]
    at = bound + 0.5
    edge = {"color": "$t2", "width": 1.2, "dash": "dash"}
    words = f"bound {bound}: " + ("none beyond" if not beyond else plural(beyond, "step") + " beyond")
    note = {"x": at, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left", "xshift": 5, "showarrow": False}
    return Figure(
        "staleness",
        "Staleness at batch cut",
        "No sample was older than the bound"
        if not beyond
        else f"{plural(beyond, 'step')} had samples beyond the bound",
        table,
        data,
        layout(
            barmode="group",
            bargap=0.42,
            hovermode="x",
            margin={"l": 40, "r": 8, "t": 8, "b": 40},
            xaxis={
                "type": "category",
                "range": [-0.5, highest + 0.5],
                "title": {"text": "versions behind", "font": {"size": 10.5, "color": "$t3"}, "standoff": 2},
            },
            yaxis={
                "rangemode": "tozero",
                **whole_ticks(0, max(max(count.values(), default=0) for count in counts.values())),
            },
            shapes=[{"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": edge}],
            annotations=[{**note, "text": words, "font": {"size": 10.5, "color": "$t2"}}],
        ),
    )


RATES = {
    "tokens": ("throughput/tokens", "Tokens/s per agent", "generated tokens per second"),
    "samples": ("throughput/samples", "Samples/s per agent", "samples per second"),
}
"""Figure -> (series, title, words)."""


def throughput(series: SeriesSet, agents: list[Agent], figure: str = "tokens") -> Figure:
    """What is generated per second, per agent where it is known, else of the team."""
    name, title, words = RATES[figure]
    known = [a for a in agents if series.get(name, a.role)[0]]
    alike = lie_together([series.get(name, a.role)[1] for a in known])
    lines = [(a.role, a.monogram, f"$a{a.hue}", dash(i, len(known), alike=alike), a.role) for i, a in enumerate(known)]
    if not lines:
        lines = [("", "", "$q6", "solid", "team")]
    xs = series.get(name, lines[0][0])[0]
    table = Table(
        ["step", *(line[4] for line in lines)],
        [[int(x), *(_nth(series.get(name, line[0]), x) for line in lines)] for x in xs],
    )
    if not xs:
        return Figure(figure, title, "", table, empty="It appears when the first step ends.")
    data, notes = [], []
    for agent, monogram, colour, pattern, label in lines:
        x, y = series.get(name, agent)
        soft = series.soft(y, 0.7)
        look = {"width": 1.8, "color": colour, "dash": pattern}
        template = "%{customdata:,.4~g}<extra>" + label + "</extra>"
        data.append(line(x, soft, look, name=label, customdata=y, hovertemplate=template))
        notes.append(end_label(x[-1], soft[-1], f"{monogram} {si(soft[-1])}".strip(), strong=True))
    return Figure(
        figure,
        title,
        f"{si(sum(series.get(name, line[0])[1][-1] for line in lines))} {words} in the last step",
        table,
        data,
        layout(
            margin={"l": 38, "r": 54, "t": 8, "b": 28},
            xaxis=step_axis(xs, 0.0),
            yaxis={"rangemode": "tozero", "nticks": 4, "tickformat": "~s"},
            annotations=apart(notes, data),
        ),
        [{"label": f"{a.role}{', dashed' if alike and i else ''}", "hue": a.hue} for i, a in enumerate(known)],
    )


def apart(notes: list[dict[str, Any]], data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Push end labels apart that would touch."""
    top = max((max(trace["y"]) for trace in data), default=0.0) or 1.0
    below: float | None = None
    for note in sorted(notes, key=lambda n: n["y"]):
        at = note["y"] / top
        place = at if below is None else max(at, below + LABEL_SHARE)
        note["yshift"] = round((place - at) * 140)
        below = place
    return notes


LABEL_SHARE = 0.1
"""Share of a chart's height that an end label takes."""


def recent_median(series: SeriesSet, name: str, count: int = 20) -> float | None:
    """Median of the last points of a series."""
    values = sorted(series.get(name)[1][-count:])
    return values[len(values) // 2] if values else None


def wait_words(series: SeriesSet) -> str:
    """The section's sentence: how much of a step trainers wait for samples, over the last 20 steps."""
    step, wait = recent_median(series, "time/step"), recent_median(series, "time/wait_samples")
    if step is None or wait is None or step <= 0:
        return ""
    return f"Trainers waited {number(100 * min(1.0, wait / step))} % of the last 20 steps for samples"


def _nth(points: tuple[list[float], list[float]], x: float) -> float | None:
    xs, ys = points
    # Series of one run share their steps, so the same index almost always fits.
    index = int(x - xs[0]) if xs else -1
    if 0 <= index < len(xs) and xs[index] == x:
        return ys[index]
    return next((y for at, y in zip(xs, ys, strict=True) if at == x), None)
