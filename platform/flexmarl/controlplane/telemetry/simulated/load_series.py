"""Series and load of a simulated run, in the form in which pages draw those of real ones.

Invariant: what a chart gets differs from a real run's only in where it is from; the core writes the same series in
both. A moment of a simulation is its seconds since 1970.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from flexmarl.contracts.decisions import Metric
from flexmarl.controlplane.telemetry.hardware.load import skew
from flexmarl.simulator.cluster.loads import EngineSample, Loads
from flexmarl.store.reads.load_rows import LoadWindow


def series(metrics: Iterable[Metric]) -> dict[str, Any]:
    """Return what `telemetry.data` returns of a real run, by step, of everything that the core wrote."""
    points: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for one in metrics:
        points[one.name, one.agent, one.stat][one.step] = one.value
    rows = [
        {"name": name, "agent": agent, "stat": stat, "x": sorted(own), "y": [own[step] for step in sorted(own)]}
        for (name, agent, stat), own in sorted(points.items())
    ]
    return {"series": rows, "x": "step"}


def load(loads: Loads, roles: dict[str, list[str]], since: float, until: float) -> dict[str, Any]:
    """Return what `telemetry.load` draws of a real run over a window. `roles`: policy -> its roles.

    Nothing is asked any more at the end of a simulation, so what is of the moment is empty, as of an ended run.
    """
    window = LoadWindow(since, until)
    part = window.part_s
    engines: dict[float, dict[int, list[EngineSample]]] = defaultdict(lambda: defaultdict(list))
    for sample in loads.engines:
        if since < sample.at <= until:
            engines[sample.at // part * part][sample.lease_id].append(sample)
    asked: dict[tuple[float, str], list[tuple[int, int]]] = defaultdict(list)
    moments: dict[float, set[float]] = defaultdict(set)
    for at, own in engines.items():
        moments[at] = {sample.at for samples in own.values() for sample in samples}
    for at, policy, turns in loads.asked:
        if since < at <= until:
            asked[at // part * part, policy].append((turns.waiting, turns.in_flight))
            moments[at // part * part].add(at)
    return {
        "window": [since, until],
        "part_s": part,
        "live": False,
        "told": bool(loads.asked),
        "policies": [
            {"policy": name, "roles": own, "waiting": 0, "in_flight": 0, "engines": 0, "slots": None}
            for name, own in roles.items()
        ],
        "queues": [_point(at, engines[at]) for at in sorted(engines)],
        "asked": [
            {
                "at": at, "policy": policy, "waiting": sum(w for w, _ in rows) / len(moments[at]),
                "in_flight": sum(f for _, f in rows) / len(moments[at]),
            }
            for (at, policy), rows in sorted(asked.items())
        ],
    }  # fmt: skip


def _point(at: float, own: dict[int, list[EngineSample]]) -> dict[str, Any]:
    """Average each engine over a part of the window, then put the engines together."""
    means = [(fmean(s.running for s in samples), fmean(s.waiting for s in samples)) for samples in own.values()]
    rows = [{"state": "active", "load": {"running": running, "waiting": waiting}} for running, waiting in means]
    cache = [s.cache_use for samples in own.values() for s in samples if s.cache_use is not None]
    return {
        "at": at,
        "engines": len(own),
        "running": sum(running for running, _ in means),
        "waiting": sum(waiting for _, waiting in means),
        "longest": max(running + waiting for running, waiting in means),
        "skew": skew(rows),
        "cache_use": fmean(cache) if cache else None,
    }
