"""`manage.py simulate`: what a workload takes under one or several presets, without devices and without waiting."""

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from django.contrib.staticfiles import finders
from django.core.management.base import BaseCommand, CommandError

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import layered, load_presets, preset_aliases
from flexmarl.controlplane.common.collecting import collected_seldom
from flexmarl.controlplane.simulations.management import pool_simulation
from flexmarl.controlplane.simulations.management.gantt import gantt
from flexmarl.controlplane.simulations.management.options import change, check_writable, workload_named
from flexmarl.simulator import SimulationError, SimulationReport
from flexmarl.simulator.reporting.checks import SchedulingFault
from flexmarl.simulator.runs import examine
from flexmarl.simulator.scenarios.library import compose, load_workloads

COLUMNS = {
    "step_s": "step, s",
    "tokens_s": "tokens/s",
    "engine_busy": "engines",
    "trainer_busy": "trainers",
    "trained_share": "trained",
    "lag": "lag",
    "swaps": "swaps",
    "moves": "moves",
}
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title><body>{divs}
<script>{library}</script><script>{calls}</script></body></html>
"""


class Command(BaseCommand):
    """Needs no database and no service."""

    help = "Simulate a workload with presets: time per step, throughput, use of device time."
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take what is simulated and where the results go."""
        known = ", ".join(load_workloads())
        parser.add_argument("presets", nargs="*", help="presets to compare; default: all")
        parser.add_argument("--workload", help=f"a name ({known}; default: hub) or a YAML file of the same form")
        parser.add_argument("--steps", type=int, default=8, help="measured train steps, after one warm-up step")
        parser.add_argument("--seeds", type=int, default=1, help="repetitions with other replies and environments")
        parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="changes",
                            help="a change, e.g. spec.batch.tasks_per_step=32; may be repeated")  # fmt: skip
        parser.add_argument(
            "--pool", type=Path, help="a YAML file of runs that share pools, instead of the options above"
        )
        parser.add_argument("--json", type=Path, help="write all figures here")
        parser.add_argument("--timeline", type=Path, help="write an HTML page with the activity of every device here")

    def handle(self, *args: Any, **options: Any) -> None:
        """Simulate, and show a row per preset."""
        _check(options)
        with collected_seldom():
            if options["pool"]:
                self._shared(options)
                return
            found = self._compare({**options, "workload": options["workload"] or "hub"})
        if not found:
            raise CommandError("No preset finished; see the reason in each line above.")

    def _compare(self, options: Mapping[str, Any]) -> Mapping[str, list[SimulationReport]]:
        """Show and write what came to an end, and return it."""
        presets = options["presets"] or list(load_presets())
        changes = layered({"steps": options["steps"]}, *(change(text) for text in options["changes"]))
        workload = workload_named(options["workload"])
        if isinstance(workload, str) and workload not in load_workloads():
            known = ", ".join(load_workloads())
            raise CommandError(f"--workload {workload} does not exist. Known: {known}; or the path of a YAML file.")
        found: dict[str, list[SimulationReport]] = {}
        findings: dict[str, list[SchedulingFault]] = {}
        self.stdout.write(_line("preset", COLUMNS.values()))
        for preset in presets:
            try:
                made = [compose(workload, preset, changes | {"seed": seed}) for seed in range(options["seeds"])]
                examined = [examine(scenario) for scenario in made]
            except SpecProblems as refused:
                if options["presets"]:
                    raise CommandError(
                        "\n".join(f"{p.pointer}: {p.detail} {p.hint}" for p in refused.problems)
                    ) from refused
                self.stdout.write(f"{preset:<16} {refused.problems[0].pointer}: {refused.problems[0].detail}")
                continue
            except SimulationError as ended:
                self.stdout.write(f"{preset:<16} {ended}")
                continue
            found[preset] = [report for report, _ in examined]
            findings[preset] = [finding for _, own in examined for finding in own]
            others = preset_aliases()[preset]
            alias = f"  alias of {', '.join(others)}" if others else ""
            self.stdout.write(_line(preset, (_cell(name, found[preset]) for name in COLUMNS)) + alias)
            for line in _told(found[preset], findings[preset]):
                self.stdout.write(line)
        if options["json"]:
            options["json"].write_text(json.dumps(_document(options, found, findings), indent=1))
        if options["timeline"] and found:
            drawn = {name: gantt(name, reports[0].intervals, reports[0].uses) for name, reports in found.items()}
            options["timeline"].write_text(_page(drawn))
        return found

    def _shared(self, options: Mapping[str, Any]) -> None:
        """Simulate runs that share pools, and show a row per run."""
        report = pool_simulation.play(options["pool"])
        self.stdout.write(pool_simulation.table(report))
        if options["json"]:
            options["json"].write_text(json.dumps(pool_simulation.figures(report), indent=1))
        if options["timeline"]:
            options["timeline"].write_text(_page({"pools": pool_simulation.drawn(report)}))


def _check(options: Mapping[str, Any]) -> None:
    """Refuse options that say nothing, contradict each other, or could not be carried out once all is played."""
    if options["steps"] < 1 or options["seeds"] < 1:
        raise CommandError("--steps and --seeds are whole numbers from 1.")
    if options["pool"] and (options["presets"] or options["workload"] or options["changes"]):
        raise CommandError("--pool sets its own runs and settings: remove presets, --workload and --set.")
    if any(text.startswith("seed=") for text in options["changes"]):
        raise CommandError("Use --seeds instead of --set seed: --seeds 3 uses the seeds 0, 1 and 2.")
    check_writable(options, "json", "timeline")


def _line(first: str, cells: Any) -> str:
    return f"{first:<16}" + "".join(f"{cell:>16}" for cell in cells)


def _cell(name: str, reports: list[SimulationReport]) -> str:
    values = [report.figures()[name] for report in reports]
    shown = f"{fmean(values):.1%}" if name.endswith(("_busy", "_share")) else f"{fmean(values):.4g}"
    return f"{shown} ±{stdev(values):.2g}" if len(values) > 1 and name in ("step_s", "tokens_s") else shown


def _told(reports: list[SimulationReport], findings: list[SchedulingFault]) -> list[str]:
    """Say below a row what faults cost, and what is wrong with the schedule."""
    lines = []
    if any(report.losses for report in reports):
        lost, back, again = (
            fmean(own)
            for own in (
                [report.lost_s for report in reports],
                [report.recovery_s for report in reports],
                [float(report.redone_tokens) for report in reports],
            )
        )
        lines.append(f"  faults: {lost:.1f} s of devices lost, recovery {back:.1f} s, {again:.0f} tokens trained again")
    by_name = {finding.name: finding for finding in reversed(findings)}
    lines += [
        f"  {name}, {finding.since:.1f} s to {finding.until:.1f} s: {finding.evidence}. {finding.advice}"
        for name, finding in sorted(by_name.items())
    ]
    return lines


def _document(
    options: Mapping[str, Any],
    found: Mapping[str, list[SimulationReport]],
    findings: Mapping[str, list[SchedulingFault]],
) -> dict[str, Any]:
    return {
        "workload": options["workload"],
        "steps": options["steps"],
        "changes": options["changes"],
        "presets": {
            name: [
                report.figures() | {"idle": report.idle, "handled": report.handled, "events": report.events}
                for report in reports
            ]
            for name, reports in found.items()
        },
        "findings": {name: [asdict(finding) for finding in own] for name, own in findings.items()},
    }


def _page(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a page that needs nothing beside itself."""
    path = finders.find("webui/vendor/plotly/plotly-basic.min.js")
    if not isinstance(path, str):
        raise CommandError("The chart library is missing from the static files.")
    divs = "".join(f'<div id="{name}"></div>' for name in figures)
    calls = "".join(
        f"Plotly.newPlot({json.dumps(name)}, {json.dumps(drawn['data'])}, {json.dumps(drawn['layout'])});"
        for name, drawn in figures.items()
    )
    return PAGE.format(title="Simulated devices", divs=divs, library=Path(path).read_text(), calls=calls)
