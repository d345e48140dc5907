"""`manage.py search`: the settings with which a workload's steps take least, at equal devices, tasks and groups."""

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import layered, load_presets
from flexmarl.simulator import Report, Scenario, SimulationError, simulate
from flexmarl.simulator.bounds import least
from flexmarl.simulator.library import compose, load_workloads
from flexmarl.simulator.published import load_tables
from flexmarl.simulator.published.reproducing import placed
from flexmarl.simulator.searching import Found, search, space
from webui.management.asked import check_writable


class Command(BaseCommand):
    """Needs no database and no service."""

    help = "Search all mechanisms for the least time per step, and say what no schedule could be below."
    requires_system_checks: Sequence[str] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take what is searched and how much is tried."""
        known = ", ".join([*load_workloads(), *load_tables()])
        parser.add_argument("workload", help=f"a workload or a published table: {known}")
        parser.add_argument("--over", default="flexmarl", help="the preset that gains are over")
        parser.add_argument("--bound", type=int, default=0, help="highest lag bound: 0 is strictly on-policy")
        parser.add_argument("--trials", type=int, default=60, help="candidates that are tried for one step")
        parser.add_argument("--seed", type=int, default=0, help="equal seeds find equal settings")
        parser.add_argument("--processes", type=int, default=1, help="simulations at once")
        parser.add_argument("--json", type=Path, help="write all figures here")

    def handle(self, *args: Any, **options: Any) -> None:
        """Search, and show the best settings beside the preset and the bound."""
        if min(options["trials"], options["processes"]) < 1 or not 0 <= options["bound"] <= 64 or options["seed"] < 0:
            raise CommandError(
                "--trials and --processes are whole numbers from 1, --bound one from 0 to 64, --seed one from 0."
            )
        check_writable(options, "json")
        document = _document(options["workload"])
        try:
            compose(document, options["over"])
        except SpecProblems as refused:
            raise CommandError("\n".join(f"{p.pointer}: {p.detail} {p.hint}" for p in refused.problems)) from refused
        with ProcessPoolExecutor(options["processes"]) as pool:
            found = search(
                space(document, options["over"], load_presets(), options["bound"]),
                options["trials"],
                options["seed"],
                lambda scenarios: list(pool.map(_played, scenarios)),
            )
        if not found:
            raise CommandError("No candidate came to an end; more --trials or a higher --bound may find one.")
        before = compose(document, options["over"], {"steps": found[0].scenario.steps})
        over = _played(before)
        if over is None:
            raise CommandError(f"--over {options['over']} comes to no end with {options['workload']}.")
        self._show(options, found, over, before)
        if options["json"]:
            options["json"].write_text(json.dumps(_figures(found, over), indent=1))

    def _show(self, options: Mapping[str, Any], found: list[Found], over: Report, before: Scenario) -> None:
        best = found[0]
        title = f"{options['workload']}, bound {options['bound']}, {options['trials']} trials, seed {options['seed']}"
        self.stdout.write(f"{title}; devices, tasks and groups per step as in {options['over']}")
        self.stdout.write(f"{options['over']:<12} {over.step_s:9.2f} s per step")
        for rank, one in enumerate(found[:5], 1):
            self.stdout.write(
                f"{f'number {rank}':<12} {one.report.step_s:9.2f} s per step, {over.step_s / one.report.step_s:.2f} x, "
                f"length ratio {one.report.length_ratio:.3f}, from {one.candidate.preset}"
            )
        own, free = least(best.scenario), least(before)
        self.stdout.write(
            f"no schedule of its devices is below {own.step_s:.2f} s, none of any split of them below "
            f"{min(own.free_s, free.free_s):.2f} s ({over.step_s / min(own.free_s, free.free_s):.2f} x)"
        )
        self.stdout.write(yaml.safe_dump(_settings(best), sort_keys=False))


def _document(name: str) -> dict[str, Any]:
    """Return the scenario of a workload, or of a table with its parameters."""
    if name in load_workloads():
        return dict(load_workloads()[name].scenario)
    if name not in load_tables():
        raise CommandError(f"{name} is no workload or table. Known: {', '.join([*load_workloads(), *load_tables()])}.")
    table = load_tables()[name]
    return layered(table.scenario, *(placed(own, own.value) for own in table.parameters.values()))


def _played(scenario: Scenario) -> Report | None:
    try:
        return simulate(scenario)
    except SimulationError:
        return None


def _settings(best: Found) -> dict[str, Any]:
    """Return the settings as a preset's document, devices and all."""
    mechanisms = best.scenario.spec.mechanisms.model_dump(mode="json", exclude_defaults=True)
    spec = {key: value for key, value in best.candidate.changes.get("spec", {}).items() if key != "mechanisms"}
    return {"title": "Found by search", "description": "", "paper": "", "spec": {"mechanisms": mechanisms, **spec}}


def _figures(found: list[Found], over: Report) -> dict[str, Any]:
    return {
        "over": over.figures(),
        "found": [
            {"preset": one.candidate.preset, "changes": one.candidate.changes, "figures": one.report.figures()}
            | {"least_s": least(one.scenario).step_s, "free_s": least(one.scenario).free_s}
            for one in found[:10]
        ],
    }
