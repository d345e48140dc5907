"""Runs that share simulated pools, as a table and as figures. Pure but for the file that is read."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from flexmarl.contracts.problems import SpecProblems
from flexmarl.controlplane.simulations.management.gantt import gantt
from flexmarl.controlplane.simulations.management.options import yaml_of
from flexmarl.simulator import PoolReport, SimulationError, simulate_pool
from flexmarl.simulator.sharing import Sharer, read_pools, starved

_LINE = "{:<16}{:>12}{:>12}{:>12}{:>12}{:>8}  {}"


def play(path: Path) -> PoolReport:
    """Simulate what a file describes. Raises CommandError with every refusal."""
    document = yaml_of("--pool", path)
    if not isinstance(document, dict):
        raise CommandError(f"--pool {path} holds no mapping with `devices` and `runs`.")
    try:
        return simulate_pool(read_pools(document))
    except SpecProblems as refused:
        raise CommandError("\n".join(f"{p.pointer}: {p.detail} {p.hint}" for p in refused.problems)) from refused
    except SimulationError as ended:
        raise CommandError(str(ended)) from ended


def table(report: PoolReport) -> str:
    """Show a row per run, and how the pools were used."""
    rows = [_LINE.format("run", "arrived, s", "wait, s", "ended, s", "step, s", "steps", "")]
    rows += [_row(run) for run in report.runs]
    used = f"{report.leased:.1%} of the devices' time was held, {report.busy:.1%} was work, in {report.seconds:.0f} s"
    wrong = [f"{one.name}: {one.evidence}. {one.advice}" for one in starved(report)]
    return "\n".join([*rows, used, *wrong])


def _row(run: Sharer) -> str:
    figures = (run.arrived, run.wait_s, run.ended, run.step_s)
    shown = ["-" if value is None else f"{value:.4g}" for value in figures]
    return _LINE.format(run.name, *shown, len(run.steps) + 1 if run.steps else "-", f"{run.status}: {run.says}")


def figures(report: PoolReport) -> dict[str, Any]:
    """Return what `--json` writes."""
    runs = {
        run.name: {
            "arrived_s": run.arrived, "wait_s": run.wait_s, "ended_s": run.ended, "step_s": run.step_s,
            "steps": list(run.steps), "status": run.status.value, "says": run.says,
        }
        for run in report.runs
    }  # fmt: skip
    whole = {"seconds": report.seconds, "leased": report.leased, "busy": report.busy, "events": report.events}
    return {"runs": runs, "pools": whole}


def drawn(report: PoolReport) -> dict[str, Any]:
    """Draw a row per lease, named by its device and run."""
    rows = {lease: f"{held.device_id} {run} {held.use}" for lease, (run, held) in report.held.items()}
    return gantt("Runs that share pools", report.intervals, dict(sorted(rows.items(), key=lambda item: item[1])))
