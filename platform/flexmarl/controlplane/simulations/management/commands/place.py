"""`manage.py place`: whether rollout and training are to share devices in turns or to have their own, and how many."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, get_args

import yaml
from django.core.management.base import BaseCommand, CommandError

from flexmarl.algorithms.placement import one_more
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import DEFAULT_PRESET, layered
from flexmarl.controlplane.simulations.management.options import change, check_writable, workload_named
from flexmarl.simulator import Scenario, SimulationError, simulate
from flexmarl.simulator.prediction.placing import Kind, PlacementChoice, cohort_work, place, profile
from flexmarl.simulator.scenarios.library import compose, load_workloads


class Command(BaseCommand):
    """Needs no database and no service."""

    help = "Plan the placement of rollout and training for a workload: on shared devices, or on separate ones."
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take what is placed and on how much."""
        known = ", ".join(load_workloads())
        parser.add_argument("devices", type=int, help="total number of devices for engines and trainers")
        parser.add_argument("--preset", default=DEFAULT_PRESET, help="preset with the other mechanisms")
        parser.add_argument("--workload", default="hub", help=f"a name ({known}) or a YAML file of the same form")
        parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="changes",
                            help="a change, e.g. spec.batch.tasks_per_step=32; may be repeated")  # fmt: skip
        parser.add_argument("--check", action="store_true", help="also simulate the plans")
        parser.add_argument("--json", type=Path, help="write all plans here")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the best placement of either kind, the better one first, with its settings."""
        check_writable(options, "json")
        changes = layered(*(change(text) for text in options["changes"]))
        try:
            base = compose(workload_named(options["workload"]), options["preset"], changes)
            found = {kind: place(base, options["devices"], kind) for kind in get_args(Kind)}
        except SpecProblems as refused:
            raise CommandError("\n".join(f"{p.pointer}: {p.detail} {p.hint}" for p in refused.problems)) from refused
        plans = sorted((plan.plan.seconds, kind, plan) for kind, plan in found.items() if plan is not None)
        if not plans:
            raise CommandError(f"{options['devices']} devices: at least 1 device is needed for engines and trainers.")
        written = {}
        for seconds, kind, plan in plans:
            written[kind] = {"step_s": seconds, "settings": plan.settings, "advice": _advice(base, kind, plan)}
            self.stdout.write(
                f"{kind:<9} {seconds:8.1f} s a step  {yaml.safe_dump(plan.settings, default_flow_style=True).strip()}"
            )
            if written[kind]["advice"]:
                self.stdout.write(f"          {written[kind]['advice']}")
            if options["check"]:
                written[kind]["simulated_s"] = self._checked(options, changes, plan)
        if options["json"]:
            options["json"].write_text(json.dumps(written, indent=1))

    def _checked(self, options: dict[str, Any], changes: dict[str, Any], plan: PlacementChoice) -> float | None:
        """Simulate a placement; None when its preset does not go with it."""
        settings = layered(changes, {"spec": plan.settings})
        try:
            took = simulate(compose(workload_named(options["workload"]), options["preset"], settings)).step_s
        except SpecProblems as refused:
            self.stdout.write("          cannot be simulated: " + " ".join(p.detail for p in refused.problems))
            return None
        except SimulationError as ended:
            self.stdout.write(f"          {ended}")
            return None
        self.stdout.write(f"          {took:8.1f} s simulated")
        return took


def _advice(scenario: Scenario, kind: Kind, plan: PlacementChoice) -> str:
    """Say whether one more device for rollout is worth it where rollout has its own."""
    stages, devices = profile(scenario, cohort_work(scenario), plan.plan.parts, kind), plan.plan.devices()
    if kind == "temporal" or not one_more(
        stages["rollout"], stages["training"], devices["rollout"], devices["training"]
    ):
        return ""
    return "rollout is slower than training by more than the gain of one more device: add one"
