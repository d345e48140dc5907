"""`manage.py search`: the settings with which a workload's steps take least, at equal devices, tasks and groups."""

import json
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import layered, load_presets
from flexmarl.controlplane.simulations.management.options import check_writable
from flexmarl.simulator import Scenario, SimulationError, SimulationReport, simulate
from flexmarl.simulator.published import load_tables
from flexmarl.simulator.published.reproducing import placed
from flexmarl.simulator.scenarios.library import load_workloads
from flexmarl.simulator.search.axes import LAYOUT
from flexmarl.simulator.search.bounds import least
from flexmarl.simulator.search.candidates import FoundCandidate, space
from flexmarl.simulator.search.searching import SEEDS, UNSEEN, Pair, against, search


class Command(BaseCommand):
    """Needs no database and no service."""

    help = "Search all mechanisms for the shortest time per step, and print its lower bound for any schedule."
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take what is searched and how much is tried."""
        known = ", ".join([*load_workloads(), *load_tables()])
        parser.add_argument("workload", help=f"a workload or a published table: {known}")
        parser.add_argument("--over", default="flexmarl", help="the preset that gains are relative to")
        parser.add_argument("--bound", type=int, default=0, help="maximum lag bound: 0 is strictly on-policy")
        parser.add_argument("--trials", type=int, default=60, help="number of candidates, including all presets")
        parser.add_argument("--seed", type=int, default=0, help="equal seeds find equal settings")
        parser.add_argument("--processes", type=int, default=1, help="concurrent simulations")
        parser.add_argument("--list", action="store_true", help="print every trial")
        parser.add_argument("--json", type=Path, help="write all figures and all trials here")

    def handle(self, *args: Any, **options: Any) -> None:
        """Search, and show the best settings beside the preset and the bound."""
        if min(options["trials"], options["processes"]) < 1 or not 0 <= options["bound"] <= 64 or options["seed"] < 0:
            raise CommandError(
                "--trials and --processes are whole numbers from 1, --bound one from 0 to 64, --seed one from 0."
            )
        check_writable(options, "json")
        document = _document(options["workload"])
        try:
            within = space(document, options["over"], load_presets(), options["bound"])
        except SpecProblems as refused:
            raise CommandError("\n".join(f"{p.pointer}: {p.detail} {p.hint}" for p in refused.problems)) from refused
        trials: list[tuple[int, FoundCandidate]] = []
        known: dict[str, SimulationReport | None] = {}

        def tell(number: int, one: FoundCandidate) -> None:
            trials.append((number, one))
            if options["list"]:
                self.stdout.write(f"trial {number:>4} {one.step_s:9.2f} s per step, {_short(one)}")

        with ProcessPoolExecutor(options["processes"]) as pool:

            def play(scenarios: list[Scenario]) -> list[SimulationReport | None]:
                names = [one.model_dump_json() for one in scenarios]
                fresh = {name: one for name, one in zip(names, scenarios, strict=True) if name not in known}
                known.update(zip(fresh, pool.map(_played, fresh.values()), strict=True))
                return [known[name] for name in names]

            found = search(within, options["trials"], options["seed"], play, tell)
            if not found:
                raise CommandError("No candidate finished; more --trials or a higher --bound may help.")
            seen, new = (against(within, found[0], seeds, play) for seeds in (SEEDS, UNSEEN))
        if seen is None:
            raise CommandError(f"--over {options['over']} does not finish with {options['workload']}.")
        self._show(options, found, seen, new)
        self._bounds(found[0], seen)
        self._published(trials)
        self.stdout.write(yaml.safe_dump(_settings(found[0]), sort_keys=False))
        if options["json"]:
            options["json"].write_text(json.dumps(_figures(found, seen, new, trials), indent=1))

    def _show(self, options: Mapping[str, Any], found: list[FoundCandidate], seen: Pair, new: Pair | None) -> None:
        title = f"{options['workload']}, bound {options['bound']}, {options['trials']} trials, seed {options['seed']}"
        self.stdout.write(f"{title}; devices, tasks and groups per step as in {options['over']}")
        over = seen.over.step_s
        self.stdout.write(f"{options['over']:<12} {over:9.2f} s per step, mean of {len(SEEDS)} seeds")
        for rank, one in enumerate(found, 1):
            ratio = min(report.length_ratio for report in one.reports)
            gains = (before.step_s / own.step_s for before, own in zip(seen.over.reports, one.reports, strict=True))
            self.stdout.write(
                f"{f'number {rank}':<12} {one.step_s:9.2f} s per step, {over / one.step_s:.2f} x "
                f"({', '.join(f'{gain:.2f}' for gain in gains)}), length ratio {ratio:.3f}, {_short(one)}"
            )
        if new is not None:
            self.stdout.write(
                f"number 1 under {len(UNSEEN)} seeds that the search did not use: {new.own.step_s:.2f} s per step, "
                f"{new.over.step_s / new.own.step_s:.2f} x"
            )

    def _bounds(self, best: FoundCandidate, seen: Pair) -> None:
        """Say what no schedule is below in the same steps, and which gain that leaves."""
        before, bounds = seen.over.step_s, _least(best.scenario)
        for said, name in (
            ("lower bound for its devices, batches and gangs", "step_s"),
            ("lower bound for any split into engines and trainers", "apart_s"),
            ("lower bound for any schedule of these devices", "free_s"),
            ("lower bound without any idle device time", "shared"),
            ("critical path: the longest episode and the work that follows it", "critical_s"),
        ):
            seconds = bounds[name]
            gain = f"{before / seconds:.2f} x" if seconds else "no limit"
            self.stdout.write(f"{said + ':':<66} {seconds:7.2f} s ({gain})")

    def _published(self, trials: list[tuple[int, FoundCandidate]]) -> None:
        """Say how trials fared by when they publish."""
        by: dict[str, list[float]] = defaultdict(list)
        for _, one in trials:
            by[one.scenario.spec.mechanisms.publication.type].append(one.step_s)
        for name, times in by.items():
            self.stdout.write(f"publication {name}: {len(times)} trials, the best one {min(times):.2f} s per step")


def _document(name: str) -> dict[str, Any]:
    """Return the scenario of a workload, or of a table with its parameters."""
    if name in load_workloads():
        return dict(load_workloads()[name].scenario)
    if name not in load_tables():
        raise CommandError(
            f"{name} is not a workload or table. Known: {', '.join([*load_workloads(), *load_tables()])}."
        )
    table = load_tables()[name]
    return layered(table.scenario, *(placed(own, own.value) for own in table.parameters.values()))


def _played(scenario: Scenario) -> SimulationReport | None:
    try:
        return simulate(scenario)
    except SimulationError:
        return None


def _short(one: FoundCandidate) -> str:
    """Say in a line what a candidate is."""
    spec = one.scenario.spec
    gangs = "+".join(str(spec.policies[name].devices.most) for name in spec.trainable_policies())
    other = {path: value for path, value in one.candidate.chosen.items() if path != LAYOUT}
    said = ", ".join(f"{path.removeprefix('mechanisms.')} {value}" for path, value in other.items())
    devices = f"{spec.resources.most_rollout_devices} engines and {spec.resources.training_devices} trainers ({gangs})"
    return f"from {one.candidate.preset}, {devices}{', ' if said else ''}{said}"


def _settings(best: FoundCandidate) -> dict[str, Any]:
    """Return the settings as a preset's document, devices and all."""
    chosen = best.scenario.spec.mechanisms
    ordinary = type(chosen)().model_dump(mode="json")
    # Whole objects: without its type, settings would be read as those of the default type.
    mechanisms = {key: value for key, value in chosen.model_dump(mode="json").items() if value != ordinary[key]}
    spec = {key: value for key, value in best.candidate.changes.get("spec", {}).items() if key != "mechanisms"}
    return {"title": "Found by search", "description": "", "paper": "", "spec": {"mechanisms": mechanisms, **spec}}


def _figures(
    found: list[FoundCandidate], seen: Pair, new: Pair | None, trials: list[tuple[int, FoundCandidate]]
) -> dict[str, Any]:
    return {
        "over": [report.figures() for report in seen.over.reports],
        "found": [
            {"preset": one.candidate.preset, "changes": one.candidate.changes, "step_s": one.step_s}
            | {"gain": seen.over.step_s / one.step_s, "figures": [report.figures() for report in one.reports]}
            for one in found
        ],
        "unseen": None if new is None else {"step_s": new.own.step_s, "gain": new.over.step_s / new.own.step_s},
        "least": _least(found[0].scenario),
        "trials": [
            {"number": number, "preset": one.candidate.preset, "step_s": one.step_s, "changes": one.candidate.changes}
            | {"publication": one.scenario.spec.mechanisms.publication.type}
            for number, one in trials
        ],
    }


def _least(scenario: Scenario) -> dict[str, float]:
    """Return the bounds of the steps that are compared, each the mean over the seeds that they are compared under."""
    found = [least(scenario.model_copy(update={"seed": seed}), measured=True) for seed in SEEDS]
    sums = [
        asdict(own) | {name: getattr(own, name) for name in ("step_s", "apart_s", "free_s", "critical_s")}
        for own in found
    ]
    return {name: fmean(one[name] for one in sums) for name in sums[0]}
