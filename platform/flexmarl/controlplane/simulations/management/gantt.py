"""What simulated devices did, as one Plotly figure: a bar per interval, a row per device. Pure: values in, values out.

Colours are those of the light theme: the drawing stands in a file of its own, outside the pages.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from flexmarl.simulator.devices.trace import TraceInterval

COLOURS = {
    "rollout": "#2f6f8f", "train": "#b3541e", "step": "#7a3512", "load": "#8a8f98", "start": "#c9ccd1",
    "bind": "#c58f00", "resume": "#c58f00", "suspend": "#c58f00", "join": "#c58f00",
    "vacate": "#c58f00", "sleep": "#8a8f98", "wake": "#8a8f98", "checkpoint": "#6b5b95",
}  # fmt: skip
ROW = 26
MANY = 20_000
"""Intervals above which the shortest are left out."""


def gantt(title: str, intervals: Iterable[TraceInterval], uses: Mapping[int, str]) -> dict[str, Any]:
    """Return `{data, layout}`: one trace per kind of interval."""
    shown = sorted(intervals, key=lambda one: one.began - one.ended)[:MANY]
    by_kind: defaultdict[str, list[TraceInterval]] = defaultdict(list)
    for interval in sorted(shown, key=lambda one: one.began):
        by_kind[interval.kind].append(interval)
    rows = {lease: f"{use} {lease}" for lease, use in uses.items()}
    layout = {
        "title": {"text": title},
        "barmode": "overlay",
        "height": 140 + ROW * len(rows),
        "xaxis": {"title": {"text": "seconds"}},
        "yaxis": {"autorange": "reversed", "categoryorder": "array", "categoryarray": list(rows.values())},
        "legend": {"orientation": "h"},
    }
    return {"data": [_bars(kind, by_kind[kind], rows) for kind in COLOURS if kind in by_kind], "layout": layout}


def _bars(kind: str, intervals: list[TraceInterval], rows: Mapping[int, str]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [rows[one.lease_id] for one in intervals],
        "x": [round(one.ended - one.began, 4) for one in intervals],
        "base": [round(one.began, 4) for one in intervals],
        "text": [one.policy for one in intervals],
        "hovertemplate": "%{y}<br>" + kind + " %{text}<br>%{x:.3f} s from %{base:.3f}<extra></extra>",
        "textposition": "none",
        "marker": {"color": COLOURS[kind]},
    }
