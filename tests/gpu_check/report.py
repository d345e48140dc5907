"""One report of a GPU check: for programs as JSON, for people as Markdown."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.gpu_check.machine import Machine
from tests.gpu_check.running import Judged, Outcome, Result

NAME = "gpu-check"


def write(folder: Path, machine: Machine, device: str, results: Sequence[Result]) -> list[Path]:
    """Write what is known so far; returns the files."""
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body = {"made": made, "device": device, "machine": machine.told(), "parts": [one.told() for one in results]}
    paths = [folder / f"{NAME}.json", folder / f"{NAME}.md"]
    paths[0].write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    paths[1].write_text(markdown(machine, device, made, results), encoding="utf-8")
    return paths


def markdown(machine: Machine, device: str, made: str, results: Sequence[Result]) -> str:
    gpus = ", ".join(f"{count} x {name}" for name, count in Counter(machine.gpus).items()) or "none"
    lines = [
        "# GPU check",
        "",
        f"{made}, on {device}; GPUs: {gpus}; torch {machine.torch}, {machine.cpus} processors, {machine.system}; "
        f"commit {machine.commit or 'unknown'}.",
        "",
        "| Part | Outcome | Figure | Value | Wanted |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        rows = [(one.name, _number(one), one.wanted + " (missed)" * (not one.reached)) for one in result.figures]
        for place, row in enumerate(rows or [("", "", "")]):
            head = (result.part.name, result.outcome.value) if place == 0 else ("", "")
            lines.append(f"| {' | '.join((*head, *row))} |")
    for result in results:
        lines += ["", f"## {result.part.name}", "", f"It {result.part.does}.", "", f"    {result.command}", ""]
        took = f" after {result.seconds:.0f} s; output in {result.log}" if result.log else ""
        lines.append(f"{result.outcome.value}{took}{': ' * bool(result.reason)}{result.reason}")
    return "\n".join(lines) + "\n"


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 when a part failed or missed a figure, 2 when no part could run, else 0."""
    outcomes = {one.outcome for one in results}
    if outcomes & {Outcome.FAILED, Outcome.MISSED}:
        return 1
    return 2 if outcomes <= {Outcome.CANNOT} else 0


def _number(figure: Judged) -> str:
    if figure.value is None:
        return "" if figure.reached else "absent"
    return f"{figure.value:.4g}"
