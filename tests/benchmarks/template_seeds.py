"""On how many seeds does each template reach its target, after how many steps, and in how much processor time?

A run in one process (`tests/support/local_training.py`): no services, so the machine's load changes no figure but the
wall clock's. Every seed that ended is a line of the result's `.seeds.jsonl`; a benchmark that is started again takes
these from there and goes on with the others. Through all services and by the clock: `learning.py`.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from harness import ROOT, Report, start

from flexmarl.contracts.resolve import load_templates
from tests.support.local_training import LocalTraining, learn

ALL = ",".join(load_templates())


@dataclass(frozen=True, slots=True)
class Seed:
    template: str
    seed: int
    reached: bool
    steps: int
    """Of the evaluation that reached the target; all steps where none did."""
    best: float
    cpu_s: float


def measure(template: str, seed: int) -> Seed:
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as home:
        found = learn(LocalTraining.of_template(template, home, {"seed": seed}))
    return Seed(template, seed, found.reached, found.step, found.best, found.cpu_s)


def known(path: Path) -> dict[tuple[str, int], Seed]:
    """Return the seeds that were measured before."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(one.template, one.seed): one for one in (Seed(**json.loads(line)) for line in lines)}


def tell(report: Report, template: str, found: list[Seed]) -> None:
    report.figures[f"{template}_reached_share"] = sum(one.reached for one in found) / len(found)
    for name, values in (("steps", [one.steps for one in found]), ("cpu_s", [one.cpu_s for one in found])):
        report.figures[f"{template}_{name}_median"] = statistics.median(values)
        report.figures[f"{template}_{name}_max"] = max(values)
    report.figures[f"{template}_best_min"] = min(one.best for one in found)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--templates", default=ALL, help="comma-separated")
    parser.add_argument("--seeds", type=int, default=10, help="from 0 on")


def main() -> None:
    torch.set_num_threads(1)
    report = start("template_seeds", "seeds on which templates reach their targets", options)
    names = ["hot_cold"] if report.quick else str(report.settings["templates"]).split(",")
    seeds = range(1 if report.quick else int(str(report.settings["seeds"])))
    path = (report.json_path or ROOT / "artifacts" / "template_seeds.json").with_suffix(".seeds.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    before = known(path)
    for template in names:
        found = []
        for seed in seeds:
            one = before.get((template, seed)) or measure(template, seed)
            if (template, seed) not in before:
                with path.open("a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
            found.append(one)
            print(one, flush=True)
        tell(report, template, found)
    report.finish()


if __name__ == "__main__":
    main()
