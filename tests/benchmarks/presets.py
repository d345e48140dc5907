"""Every preset, played for real: a tiny team of two policies through all services, with two engines and two trainers.

Each preset makes a few steps of the template with episodes of unequal length; afterwards the rows are asked whether the
run kept what every run promises (`tests/support/promised.py`): it completed, the store's promises hold, every step
trained the episodes that were asked for, no row is older than its bound, every proposed episode ended, engines that are
to serve one version at a time did, and the replay of its log equals the stored rows exactly. It is no comparison:
`NAME_step_s` is told to find what stands still.
A preset that is refused by the rules of real runs is told with the refusals, and counts as such.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from harness import Report, start

from flexmarl.contracts.resolve import load_presets
from tests.support.promised import Kept, broken, read
from tests.support.system import Api, ApiError, System

TIMEOUT_S = 300.0
QUICK = ("rollpacker", "verl_async", "rlinf_hybrid")
DEVICES = {"FLEXMARL_CPU_SHARES": "4"}
REPLAYED = "equals the stored rows exactly"


def spec(steps: int) -> dict[str, Any]:
    """Return what is laid over a preset and the template: small batches, waits that differ, two devices of a use."""
    return {
        "environment": {"latency": {"scale_s": 0.03, "sigma": 1.2, "cap_s": 1.0}},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2},
        "resources": {"rollout_devices": 2, "training_devices": 2},
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 10_000, "tasks": 4},
        "checkpoints": {"every_steps": 10_000},
    }


def play(system: System, api: Api, template: str, preset: str, steps: int) -> tuple[dict[str, Any], Kept, list[str]]:
    """Run a preset to its end; returns the run, what its rows say, and what does not hold."""
    run = api.create_run(name=preset, template=template, preset=preset, spec=spec(steps))
    try:
        done = api.finish(run["id"], TIMEOUT_S)
    except TimeoutError:
        api.act(run["id"], "kill")
        done = api.finish(run["id"], TIMEOUT_S)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        kept = read(conn, done["no"])
    wrong = broken(done, kept)
    if REPLAYED not in (said := system.manage("replay", str(done["no"]))):
        wrong.append(f"replayed: {said.strip()[-200:]}")
    return done, kept, wrong


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--presets", nargs="*", choices=tuple(load_presets()), default=list(load_presets()))
    parser.add_argument("--template", default="hot_cold")
    parser.add_argument("--steps", type=int, default=4)


def _tell(report: Report, preset: str, done: dict[str, Any], kept: Kept, wrong: list[str], seconds: float) -> None:
    figures = {
        "step_s": seconds / max(done["step"], 1), "lag": max(kept.lags.values(), default=0), "turns": kept.turns,
        "engine_versions": done["spec"]["resources"]["engine_versions"],
        "cancelled": done["progress"]["episodes_cancelled"], "broken": len(wrong),
    }  # fmt: skip
    surplus = {name.partition("/")[2]: value for name, value in kept.surplus.items()}
    report.figures |= {f"{preset}_{name}": float(value) for name, value in figures.items()}
    print(f"{preset:24} {figures} {surplus} {list(kept.episodes.values())}", *wrong, sep="\n    ", flush=True)


def main() -> None:
    report = start("presets", "what every preset does for real", options)
    presets, template, steps = (report.settings.pop(name) for name in ("presets", "template", "steps"))
    presets = QUICK if report.quick else presets
    failed, refused = 0, 0
    with (
        tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder,
        System(Path(folder) / "home", environment=DEVICES) as system,
    ):
        Path(folder).chmod(0o711)
        api = system.api()
        for preset in presets:
            began = time.monotonic()
            try:
                done, kept, wrong = play(system, api, template, preset, steps)
            except ApiError as refusal:
                refused += 1
                print(f"{preset:24} refused: {refusal}", flush=True)
                continue
            failed += bool(wrong)
            _tell(report, preset, done, kept, wrong, time.monotonic() - began)
    report.figures |= {"presets": len(presets), "refused": refused, "failed": failed}
    report.settings |= {"template": template, "steps": steps, "spec": spec(steps)}
    report.finish()


if __name__ == "__main__":
    main()
