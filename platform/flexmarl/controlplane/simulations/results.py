"""Reports of the simulator as plain values: figures per seed, their mean and spread, what devices did."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from flexmarl.simulator import SimulationReport
from flexmarl.simulator.devices.trace import BUSY
from flexmarl.simulator.reporting.report import CAUSES, USES

MOST_INTERVALS = 6_000
"""Of a drawing; the shortest are left out beyond."""


def seed_row(seed: int, report: SimulationReport) -> dict[str, Any]:
    """Return the figures of one simulation."""
    return {
        "seed": seed,
        "figures": {**report.figures(), "wasted_share": round(max(0.0, 1.0 - report.trained_share), 6)},
        "steps": [round(step, 4) for step in report.steps],
        "idle": {use: {cause: round(report.idle[use][cause], 6) for cause in CAUSES} for use in USES},
        "lag": {name: round(value, 4) for name, value in report.lag.items()},
        "handled": report.handled,
        "events": report.events,
    }


def gathered(rows: Sequence[Mapping[str, Any]], error: str = "") -> dict[str, Any]:
    """Return a preset's seeds with mean, spread and range of every figure. `error`: why seeds are missing."""
    figures = {name: _spread([row["figures"][name] for row in rows]) for name in (rows[0]["figures"] if rows else {})}
    idle = {
        use: {cause: round(fmean(row["idle"][use][cause] for row in rows), 6) for cause in CAUSES} if rows else {}
        for use in USES
    }
    return {"figures": figures, "idle": idle, "seeds": list(rows), "error": error}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": round(fmean(values), 6),
        "sd": round(stdev(values), 6) if len(values) > 1 else 0.0,
        "least": min(values),
        "most": max(values),
    }


def timeline(report: SimulationReport) -> dict[str, Any]:
    """Return what every device did over the steps that count; seconds begin with them."""
    kept = sorted(report.intervals, key=lambda one: one.began - one.ended)[:MOST_INTERVALS]
    kept.sort(key=lambda one: (one.lease_id, one.began))
    return {
        "seconds": round(report.ended - report.began, 3),
        "left_out": len(report.intervals) - len(kept),
        "devices": [{"id": lease, "use": use} for lease, use in sorted(report.uses.items())],
        "intervals": [
            {
                "device": one.lease_id,
                "kind": one.kind,
                "policy": one.policy,
                "t0": round(max(one.began, report.began) - report.began, 3),
                "t1": round(min(one.ended, report.ended) - report.began, 3),
                "busy": one.kind in BUSY,
            }
            for one in kept
        ],
    }
