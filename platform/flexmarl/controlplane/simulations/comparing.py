"""A comparison, preset by preset and seed by seed."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from flexmarl.controlplane.simulations.choices import SimulationFailure
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.controlplane.simulations.requests import Comparison
from flexmarl.controlplane.simulations.results import gathered, seed_row, timeline
from flexmarl.simulator import Scenario, SimulationError, SimulationReport, simulate


@dataclass(frozen=True, slots=True)
class ComparisonProgress:
    """How whoever plays tells how far it is, and lets itself be interrupted."""

    told: Callable[[int, str], None]
    """(single simulations done, what comes next)"""
    interruptible: Callable[[], AbstractContextManager[None]]

    def simulate(self, scenario: Scenario) -> SimulationReport:
        """Play one scenario. Raises SimulationError when it comes to no end."""
        with self.interruptible():
            return simulate(scenario)


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    result: dict[str, Any]
    timelines: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    """Empty when it came to an end."""
    reason_text: str = ""


def compared(row: Simulation, playing: ComparisonProgress) -> ComparisonResult:
    """Play every preset on a built-in workload under every seed."""
    wish = Comparison.model_validate(row.request)
    return side_by_side(row, wish.presets, wish.seeds, wish.scenario, playing)


def side_by_side(
    row: Simulation,
    names: Sequence[str],
    seeds: int,
    scenario: Callable[[str, int], Scenario],
    playing: ComparisonProgress,
) -> ComparisonResult:
    """Play what each name stands for under every seed; one that comes to no end is told and the others go on."""
    presets: dict[str, Any] = {}
    timelines: dict[str, Any] = {}
    for place, name in enumerate(names):
        rows, error = [], ""
        for seed in range(seeds):
            playing.told(place * seeds + seed, f"{name}, seed {seed}")
            try:
                report = playing.simulate(scenario(name, seed))
            except SimulationError as ended:
                error = str(ended)
                break
            rows.append(seed_row(seed, report))
            timelines.setdefault(name, timeline(report))
        presets[name] = gathered(rows, error)
    playing.told(row.total, "")
    if not any(one["seeds"] for one in presets.values()):
        text = "; ".join(f"{name}: {one['error']}" for name, one in presets.items())
        return ComparisonResult({"presets": presets}, {}, SimulationFailure.NO_END, text)
    return ComparisonResult({"presets": presets}, timelines)
