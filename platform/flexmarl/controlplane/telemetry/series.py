"""Series of a run: what each is called and measured in, and its points, thinned for a chart."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.store import metrics

DEFAULT_POINTS = 500
MAX_POINTS = 5000
AXES: tuple[metrics.Axis, ...] = ("step", "time", "samples")

_TITLES: dict[str, tuple[str, str]] = {
    "reward/team": ("Team reward", ""),
    "reward/agent": ("Reward", ""),
    "solved": ("Solved share", "share"),
    "eval/solved": ("Solved share on held-out tasks", "share"),
    "eval/team_score": ("Team score on held-out tasks", ""),
    "train/loss": ("Loss", ""),
    "train/entropy": ("Entropy", "nats"),
    "train/grad_norm": ("Gradient norm", ""),
    "train/kl_engine": ("KL of engine and trainer", "nats"),
    "train/logprob_gap": ("Gap of log-probabilities", "nats"),
    "train/learning_rate": ("Learning rate", ""),
    "train/entropy_coef": ("Entropy coefficient", ""),
    "length/response": ("Response length", "tokens"),
    "groups/useful": ("Useful groups", "share"),
    "groups/easy": ("Groups that are too easy", "share"),
    "groups/hard": ("Groups that are too hard", "share"),
    "staleness/own_max": ("Largest own lag", "versions"),
    "time/step": ("Step time", "s"),
    "time/rollout": ("Rollout time of a step", "s"),
    "time/wait_samples": ("Trainer waits for samples", "s"),
    "throughput/tokens": ("Tokens", "tokens/s"),
    "throughput/samples": ("Samples", "samples/s"),
    "episodes/failed": ("Failed episodes", "episodes"),
}
"""Name -> (title, unit) of the series the core writes."""


def describe(name: str) -> tuple[str, str]:
    """Return (title, unit) of a series; names of an environment's facts are their own titles."""
    if name in _TITLES:
        return _TITLES[name]
    return name.rpartition("/")[2].replace("_", " ").capitalize(), ""


def catalogue(run: Run) -> list[dict[str, Any]]:
    """List the series of a run with their range."""
    rows = []
    for found in metrics.catalogue(store_connection(), run.no):
        title, unit = describe(found.name)
        rows.append({**asdict(found), "title": title, "unit": unit})
    return rows


def data(
    run: Run,
    names: Sequence[str],
    *,
    agent: str | None = None,
    x: metrics.Axis = "step",
    start: float | None = None,
    end: float | None = None,
    max_points: int = DEFAULT_POINTS,
) -> dict[str, Any]:
    """Read points of series. `seq` is the run's newest event when they were read."""
    found = metrics.series(
        store_connection(), run.no, names, agent=agent, x=x, start=start, end=end, max_points=max_points
    )
    return {
        "series": [{"name": s.name, "agent": s.agent, "stat": s.stat, "x": s.x, "y": s.y} for s in found],
        "x": x,
        "seq": run.state.seq,
    }
