"""Does it help to choose tasks? Samplers against uniform draws from the same set, at equal generated tokens.

`python tests/benchmarks/task_choice_learning.py --out FILE [--arms uniform vade]`: all arms play *arithmetic* from the
same seeds until they have sampled as many tokens, in turns. `uniform` is `vade` that is never told how a group ended;
`in_order` is `greso` that passes over nothing, which draws as `uniform` does and begins anew after the last task: what
`greso`, `filter_solved` and `near_success` are compared with. Compared with the first arm is the share of held-out
tasks solved, as the mean of evaluations along the way (area) and of the last ones (end), and the groups drawn for one
with a variance, which is what dynamic sampling would draw for each that it keeps.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.local_training import LocalTraining

ARMS: dict[str, dict[str, Any]] = {
    "uniform": {"type": "vade"},
    "vade": {"type": "vade"},
    "in_order": {"type": "greso", "least_easy": 1.0, "least_hard": 1.0},
    "greso": {"type": "greso"},
    "filter_solved": {"type": "filter_solved", "decay": 0.3, "threshold": 0.9},
    "near_success": {"type": "near_success"},
}
"""`filter_solved` leaves a task out after two groups in a row that all solved: by default it is 29, of which the few
visits of so short a run make none."""
IMITATION = {"batch_size": 256, "learning_rate": 0.003, "max_seconds": 60.0}
IMITATED = 12
"""Steps of imitation after which about half of the tasks are solved: the template's own leave nothing to choose."""
LAST = 3
FIGURES = ("area", "end", "training_score", "draws_per_kept")
RESAMPLES = 10_000


class Watched(LocalTraining):
    """Counts the groups whose members differ."""

    differing = 0

    def _observe(self, draw: int, settled: Any) -> None:
        self.differing += len({episode.team_score for episode in settled.event.episodes}) > 1
        super()._observe(draw, settled)


class Untold(Watched):
    """Believes nothing of any task, so that all are equally likely."""

    def _observe(self, draw: int, settled: Any) -> None:
        self._task_of.pop(draw, None)
        super()._observe(draw, settled)


def played(arm: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train until so many tokens are sampled; evaluate every so many steps."""
    made = Untold if arm == "uniform" else Watched
    warmup = IMITATION | {"steps": given.imitation}
    changes = {
        "seed": seed,
        "sampling": {"task_sampler": ARMS[arm] | {"tasks": given.tasks}},
        "policies": {policy: {"warmup": warmup} for policy in ("planner", "solver", "verifier")},
    }
    began = time.process_time()
    with tempfile.TemporaryDirectory() as home:
        training = made.of_template("arithmetic", home, changes)
        while training.tokens < given.tokens:
            training.step()
            if training.steps_done % given.every == 0:
                training.evaluate()
        solved = [one.solved for one in training.evaluations]
        groups = training.steps_done * training.spec.batch.tasks_per_step
        return {
            "arm": arm, "seed": seed, "steps": training.steps_done, "tokens": training.tokens, "solved": solved,
            "area": statistics.mean(solved), "end": statistics.mean(solved[-LAST:]),
            "training_score": statistics.mean(training.rewards),
            "draws_per_kept": groups / training.differing, "cpu_s": round(time.process_time() - began, 1),
            "believed": training.plan.tasks.sampler.of_set(training.belief, given.tasks),
        }  # fmt: skip


def compared(rows: list[dict[str, Any]], figure: str, base: str, arm: str) -> dict[str, Any]:
    """Return the mean difference between two arms over seeds with its bootstrap interval of 95 %."""
    by = {(row["arm"], row["seed"]): row[figure] for row in rows}
    seeds = sorted({row["seed"] for row in rows if all((one, row["seed"]) in by for one in (base, arm))})
    gaps = np.array([by[arm, seed] - by[base, seed] for seed in seeds])
    means = np.random.default_rng(0).choice(gaps, (RESAMPLES, len(gaps))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    arms = {one: round(statistics.mean(by[one, seed] for seed in seeds), 4) for one in (base, arm)}
    found = {"difference": float(gaps.mean()), "low": float(low), "high": float(high)}
    return arms | {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--arms", nargs="+", choices=ARMS, default=["uniform", "vade"], help="the first is the base")
    asked.add_argument("--tasks", type=int, default=256)
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--tokens", type=int, default=60_000)
    asked.add_argument("--every", type=int, default=5)
    asked.add_argument("--imitation", type=int, default=IMITATED, help="steps before the first one that is compared")
    given = asked.parse_args()
    base, *others = given.arms
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in given.arms:
            rows.append(played(arm, seed, given))
            document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": rows}
            if arm == given.arms[-1]:
                document["compared"] = {
                    f"{other}: {figure}": compared(rows, figure, base, other) for other in others for figure in FIGURES
                }
            given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print(rows[-1], flush=True)
    print(json.dumps(document["compared"], indent=1))


if __name__ == "__main__":
    main()
