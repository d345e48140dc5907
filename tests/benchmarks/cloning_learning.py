"""Do weights of turns help imitation? HABC against cloning what solved alike, and against GRPO, at equal tokens.

`python tests/benchmarks/cloning_learning.py --out FILE [--task hot_cold]`: every arm plays a template of several turns
from the same seeds until it has sampled as many tokens. `cloning` imitates the turns of solved episodes, all alike
(rejection sampling): it is HABC whose heads never weigh anything. Compared is the share of held-out tasks solved, as
the mean of evaluations along the way (area) and of the last ones (end), with the bootstrap interval of the mean
difference over seeds.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tests.benchmarks.preferences_compared import learned
from tests.benchmarks.task_choice_learning import compared

NEVER = 1_000_000


def arms(warmup_steps: int, rate: float) -> dict[str, dict[str, Any]]:
    """Arm -> what stands under `algorithm`."""
    return {
        "grpo": {},
        "cloning": {"advantage": {"type": "habc", "critic_rate": rate, "warmup_steps": NEVER}},
        "habc": {"advantage": {"type": "habc", "critic_rate": rate, "warmup_steps": warmup_steps}},
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--task", default="hot_cold", help="a template of factory models")
    asked.add_argument("--arms", nargs="+", choices=arms(0, 0.0), default=["grpo", "cloning", "habc"])
    asked.add_argument("--groups", type=int, default=8, help="of a step of all arms")
    asked.add_argument("--warmup-steps", type=int, default=10)
    asked.add_argument("--critic-rate", type=float, default=0.03)
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--tokens", type=int, default=20_000)
    asked.add_argument("--evaluations", type=int, default=8)
    given = asked.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in given.arms if seed % 2 == 0 else reversed(given.arms):
            algorithm = arms(given.warmup_steps, given.critic_rate)[arm]
            rows.append({"arm": arm, "seed": seed} | learned(given.task, seed, algorithm, given))
            print(rows[-1], flush=True)
    found = {
        f"habc over {arm}, {figure}": compared(rows, figure, arm, "habc")
        for arm in given.arms
        if arm != "habc"
        for figure in ("area", "end")
    }
    document = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": rows, "compared": found}
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
