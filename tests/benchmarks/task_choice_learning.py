"""Does it help to choose tasks? The sampler `vade` against uniform draws from the same set, at equal generated tokens.

`python tests/benchmarks/task_choice_learning.py --out FILE`: both arms play *arithmetic* from the same seeds until they
have sampled as many tokens, in turns; the uniform one is `vade` that is never told how a group ended. Compared is the
share of held-out tasks solved, as the mean of evaluations along the way (area) and of the last ones (end).
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.local_training import LocalTraining

ARMS = ("uniform", "vade")
SHORT = {"steps": 12, "batch_size": 256, "learning_rate": 0.003, "max_seconds": 60.0}
"""Imitation after which about half of the tasks are solved: the template's own leaves nothing to choose."""
LAST = 3
RESAMPLES = 10_000


class Untold(LocalTraining):
    """Believes nothing of any task, so that all are equally likely."""

    def _observe(self, draw: int, settled: Any) -> None:
        self._task_of.pop(draw, None)
        super()._observe(draw, settled)


def played(arm: str, tasks: int, seed: int, tokens: int, every: int) -> dict[str, Any]:
    """Train until so many tokens are sampled; evaluate every so many steps."""
    made = LocalTraining if arm == "vade" else Untold
    changes = {
        "seed": seed,
        "sampling": {"task_sampler": {"type": "vade", "tasks": tasks}},
        "policies": {policy: {"warmup": SHORT} for policy in ("planner", "solver", "verifier")},
    }
    with tempfile.TemporaryDirectory() as home:
        training = made.of_template("arithmetic", home, changes)
        while training.tokens < tokens:
            training.step()
            if training.steps_done % every == 0:
                training.evaluate()
        solved = [one.solved for one in training.evaluations]
        return {
            "arm": arm, "seed": seed, "steps": training.steps_done, "tokens": training.tokens, "solved": solved,
            "area": statistics.mean(solved), "end": statistics.mean(solved[-LAST:]),
            "training_score": statistics.mean(training.rewards),
        }  # fmt: skip


def compared(rows: list[dict[str, Any]], figure: str) -> dict[str, Any]:
    """Return the mean difference vade - uniform over seeds with its bootstrap interval of 95 %."""
    by = {(row["arm"], row["seed"]): row[figure] for row in rows}
    seeds = sorted({row["seed"] for row in rows if all((arm, row["seed"]) in by for arm in ARMS)})
    gaps = np.array([by["vade", seed] - by["uniform", seed] for seed in seeds])
    means = np.random.default_rng(0).choice(gaps, (RESAMPLES, len(gaps))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    arms = {arm: round(statistics.mean(by[arm, seed] for seed in seeds), 4) for arm in ARMS}
    found = {"difference": float(gaps.mean()), "low": float(low), "high": float(high)}
    return arms | {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--tasks", type=int, default=256)
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--tokens", type=int, default=60_000)
    asked.add_argument("--every", type=int, default=5)
    given = asked.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        for arm in ARMS:
            rows.append(played(arm, given.tasks, seed, given.tokens, given.every))
            document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": rows}
            if arm == ARMS[-1]:
                document["compared"] = {figure: compared(rows, figure) for figure in ("area", "end", "training_score")}
            given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print(rows[-1], flush=True)
    print(document["compared"])


if __name__ == "__main__":
    main()
