"""Figures that a change of the core, of a preset or of a model moves: whoever moves them says so, by renewing the file.

`python tests/unit/simulator/test_golden.py` writes the figures anew; the difference in `golden.json` is what a change
did to every preset, and belongs into its review.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from flexmarl.simulator.runs import examine
from flexmarl.simulator.scenarios.library import compose

FILE = Path(__file__).with_name("golden.json")
SHOWN = ("step_s", "tokens_s", "engine_busy", "trainer_busy", "trained_share", "lag", "swaps", "moves", "lost_s",
         "recovery_s", "redone_tokens", "replayed_tokens")  # fmt: skip
TOLERANCE = 0.02
"""Relative; figures below one may differ by as much."""
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "losses": {"rates": [{"use": "engine", "every": 300}, {"use": "trainer", "every": 200}]},
    "host": {"node_devices": 2, "nodes": [{"at": 60, "node": 0}], "replace": 30, "declare": 15},
    "spot": {"spot": [{"at": 50, "devices": 2}, {"at": 120, "devices": 20}], "notice": 10},
    "slow": {"slow": [{"device": 0, "factor": 3.0, "since": 30}], "workers": [{"at": 70, "share": 0.5}]},
}
PRESETS = (
    "active_partial",
    "bounded_async",
    "flexmarl",
    "mini_batch",
    "one_step_off",
    "policy_clock",
    "sync",
    "wavefront",
)
"""Those that differ in what the core does; presets of published systems are combinations of the same options."""
WORKLOADS = ("hub", "long_tail", "slow_environment")
CASES = [f"{workload} {preset} none" for workload in WORKLOADS for preset in PRESETS]
CASES += [f"{workload} flexmarl {faults}" for workload in WORKLOADS for faults in FAULTS if faults != "none"]


def figures(case: str) -> dict[str, Any]:
    workload, preset, faults = case.split()
    batch = {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 1}
    changes = {"steps": 2, "warm_up": 1, "faults": FAULTS[faults], "spec": {"batch": batch}}
    report, findings = examine(compose(workload, preset, changes))
    shown = report.figures()
    return {name: round(shown[name], 4) for name in SHOWN} | {"findings": sorted({one.name for one in findings})}


@pytest.mark.parametrize("case", CASES)
def test_figures_are_those_on_record(case: str):
    recorded = json.loads(FILE.read_text())[case]
    assert figures(case) == {
        name: pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE) if isinstance(value, float) else value
        for name, value in recorded.items()
    }


def test_nothing_else_is_on_record():
    assert sorted(json.loads(FILE.read_text())) == sorted(CASES)


if __name__ == "__main__":
    FILE.write_text(json.dumps({case: figures(case) for case in CASES}, indent=1) + "\n")
