"""The agent matrix: one row per metric, one column per agent, one y range per row so that columns compare."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webui.figures.base import Agent, SeriesSet
from webui.formats import number, percent, si, tiny

RISE_TEXT = 0.1
"""Relative change below which a row's summary says `steady`."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A row of the matrix. `by_policy` series are named after the policy, others after the role."""

    name: str
    title: str
    unit: str
    write: Callable[[float | None], str]
    by_policy: bool = False
    floor: float | None = 0.0
    stat: str = "mean"


LEARNING = (
    MatrixRow("reward/agent", "Reward", "mean of step", lambda v: number(v, 3)),
    MatrixRow("length/response", "Response length", "tokens, mean", si),
)
STABILITY = (
    MatrixRow("train/entropy", "Entropy", "nats per token", lambda v: number(v, 2), by_policy=True),
    MatrixRow("train/kl_engine", "Mismatch", "KL, engine to trainer", tiny, by_policy=True),
    MatrixRow("train/loss", "Loss", "per trained token", lambda v: number(v, 3), by_policy=True, floor=None),
    MatrixRow("train/grad_norm", "Gradient norm", "before clipping", lambda v: number(v, 2), by_policy=True),
    MatrixRow(
        "train/clipped", "Clip fraction", "share of tokens", lambda v: percent(v, 1), by_policy=True, stat="share"
    ),
)


def names(metrics: tuple[MatrixRow, ...]) -> list[str]:
    """List the series the rows need."""
    return [metric.name for metric in metrics]


def matrix(series: SeriesSet, agents: list[Agent], metrics: tuple[MatrixRow, ...]) -> dict[str, Any]:
    """Lay the series of some metrics out as rows and columns of plain arrays.

    A metric that nobody wrote is left out, unless no metric was written yet.
    """
    rows = [_row(series, agents, metric) for metric in metrics]
    drawn = [row for row in rows if any(cell["raw"] for cell in row["cells"])]
    return {
        "columns": [{"role": a.role, "hue": a.hue, "monogram": a.monogram} for a in agents],
        "rows": drawn or rows,
    }


def _row(series: SeriesSet, agents: list[Agent], metric: MatrixRow) -> dict[str, Any]:
    cells = [_cell(series, agent, metric) for agent in agents]
    values = [value for cell in cells for value in cell["raw"]]
    return {
        "name": metric.name,
        "title": metric.title,
        "unit": metric.unit,
        "range": y_range(values, metric.floor),
        "cells": cells,
        "summary": ". ".join(cell["summary"] for cell in cells if cell["summary"]),
    }


def _cell(series: SeriesSet, agent: Agent, metric: MatrixRow) -> dict[str, Any]:
    xs, ys = series.get(metric.name, agent.policy if metric.by_policy else agent.role, metric.stat)
    return {
        "role": agent.role,
        "x": xs,
        "raw": ys,
        "smooth": series.soft(ys),
        "last": metric.write(ys[-1]) if ys else "",
        "summary": _words(agent.role, metric, ys),
    }


def _words(role: str, metric: MatrixRow, ys: list[float]) -> str:
    if not ys:
        return ""
    first, last = ys[0], sum(ys[-10:]) / len(ys[-10:])
    scale = max(abs(first), abs(last), 1e-9)
    if abs(last - first) / scale < RISE_TEXT:
        return f"{role}: {metric.title.lower()} steady at {metric.write(last)}"
    return f"{role}: {metric.title.lower()} {metric.write(first)} to {metric.write(last)}"


def y_range(values: list[float], floor: float | None) -> list[float]:
    """One range for a row: from the floor (or the smallest value) to a little above the largest."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    if floor is not None:
        low = min(low, floor)
    pad = (high - low) * 0.08 or abs(high) * 0.1 or 1.0  # nothing but zeros: a range in which zero can be read
    return [low if floor is not None and low == floor else low - pad, high + pad]
