"""Reads that several pages share, through `queries` alone."""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.controlplane.agents import queries as agents
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures.base import SeriesSet

Axis = Literal["step", "time", "samples", "version"]
POINTS = 400
"""Points per series that a chart gets: more than it has pixels for a mark."""
DENSE = 8192
"""Points up to which a series is read whole."""
STEP_EPISODES = 200
"""Episodes of a step among which the best and the worst are looked for."""


def series(run: Any, names: Iterable[str], x: Axis = "step", strength: float = 1.0) -> SeriesSet:
    """Read the points of some series of a run."""
    return SeriesSet(telemetry.data(run, list(names), x=x, max_points=POINTS)["series"], strength)


def exact(run: Any, names: Iterable[str], first: int, last: int) -> SeriesSet:
    """Read every point of some series from one step to another: for figures that speak of single steps."""
    most = max(4, last - first + 1)
    return SeriesSet(telemetry.data(run, list(names), start=first, end=last, max_points=most)["series"])


def dense(run: Any, names: Iterable[str]) -> SeriesSet:
    """Read some series point by point as far as the store does: what is averaged or ranked must not be thinned."""
    return SeriesSet(telemetry.data(run, list(names), max_points=DENSE)["series"])


def episodes_of_step(run: Any, step: int) -> list[dict[str, Any]]:
    """Read training episodes that a step was made of; `step` counts the steps before it."""
    wanted = telemetry.EpisodeFilter(cohort=step, status=EpisodeStatus.FINISHED)
    return telemetry.trajectory_page(run, wanted, limit=STEP_EPISODES)[0]


def best_score(run: Any) -> float:
    """Highest reachable team score of a run's environment: what bars are drawn against."""
    return _optimum(json.dumps(run.spec["environment"], sort_keys=True))


@cache
def _optimum(environment: str) -> float:
    return TypeAdapter(EnvironmentSpec).validate_json(environment).facts().optimum


def role_marks(roles: Sequence[str], project: str = "default") -> list[dict[str, Any]]:
    """Give roles their hue and monogram; a role nobody has used yet gets the hue that it would be given."""
    known = agents.hues(project)
    marks = agents.monograms(roles)
    hues = dict(known)
    for role in roles:
        if role not in hues:
            hues[role] = agents.next_hue(hues.values())
    return [{"role": role, "hue": hues[role], "monogram": marks[role], "new": role not in known} for role in roles]
