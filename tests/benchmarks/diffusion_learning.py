"""Do policies that decode by block diffusion learn? DiPO and diffu-GRPO against GRPO from left to right.

`python tests/benchmarks/diffusion_learning.py --out FILE [--task reference_game]`: every arm plays a template from the
same seeds until it has sampled as many tokens. `grpo` decodes from left to right; `dipo` and `diffu_grpo` have the same
weights at first, decode by block diffusion and differ in `log_probs` alone; `one_step` is `dipo` with one denoising
step, which reveals all of a block at once. Compared with `grpo`, and `dipo` with `diffu_grpo`, is the share of held-out
tasks solved, as the mean of evaluations along the way (area) and of the last ones (end), with the bootstrap interval of
the mean difference over seeds. `passes` are forward passes of a reply for each of its tokens, in training;
`greedy_passes` those in the last evaluation.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import Origin
from tests.benchmarks.task_choice_learning import compared
from tests.support.local_training import LocalTraining
from workers.rollout.episode import EpisodeAttempt

LAST = 3
BLOCKS = {"decoding": "block_diffusion"}
PAIRS = (("grpo", "dipo"), ("grpo", "diffu_grpo"), ("diffu_grpo", "dipo"), ("grpo", "one_step"), ("one_step", "dipo"))


def arms(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Arm -> what is asked for of each policy, beside what the template says of it."""
    confidence = given.confidence or None
    model = BLOCKS | {"block": given.block, "denoising_steps": given.block, "confidence": confidence}
    return {
        "grpo": {},
        "dipo": {"model": model, "log_probs": "dipo"},
        "diffu_grpo": {"model": model, "log_probs": "diffu_grpo"},
        "one_step": {"model": model | {"denoising_steps": 1}, "log_probs": "dipo"},
    }


class Counted(LocalTraining):
    """Counts the passes and the tokens of replies: of training, and of the last evaluation, which is greedy."""

    block = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.counted = dict.fromkeys(Origin, (0, 0))

    def play(self, draws: Sequence[int], origin: Origin, members: int) -> list[list[EpisodeAttempt]]:
        groups = super().play(draws, origin, members)
        passes, tokens = self.counted[origin] if origin is Origin.TRAIN else (0, 0)
        for choice in (turn.reply.choice for group in groups for one in group for turn in one.turns):
            tokens += len(choice.token_ids)
            passes += passes_of(choice.steps, self.block) if choice.steps else len(choice.token_ids)
        self.counted[origin] = passes, tokens
        return groups

    def passes(self, origin: Origin) -> float:
        """Return forward passes for each token."""
        passes, tokens = self.counted[origin]
        return round(passes / tokens, 3)


def passes_of(steps: Sequence[int], block: int) -> int:
    """Count the forward passes of a reply by its step map: each step, and one that keeps a block for the next."""
    parts = [steps[start : start + block] for start in range(0, len(steps), block)]
    return sum(max(part) + 1 for part in parts) + len(parts) - 1


def played(arm: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train until so many tokens are sampled; evaluate every so many."""
    plain = resolve({}, template=given.task).spec.policies
    rate = {} if given.rate is None else {"optimizer": {"type": "adamw", "learning_rate": given.rate}}
    policies = {
        name: arms(given)[arm] | rate | ({"warmup": None} if own.warmup is not None else {})
        for name, own in plain.items()
    }
    batch = dict.fromkeys(("tasks_per_step", "micro_batch_groups", "rollout_groups"), given.groups)
    changes = {
        "seed": seed, "batch": batch, "policies": policies, "environment": json.loads(given.environment),
        "algorithm": {"loss": {"type": "ppo_clip"}},
    }  # fmt: skip
    began = time.process_time()
    with tempfile.TemporaryDirectory() as home:
        training = Counted(resolve(changes, template=given.task).spec, home)
        training.block = given.block
        training.train(given.tokens, given.evaluations)
        scores = [one.solved for one in training.evaluations]
        return {
            "arm": arm, "seed": seed, "steps": training.steps_done, "tokens": training.tokens,
            "solved": [round(score, 3) for score in scores], "area": statistics.mean(scores),
            "end": statistics.mean(scores[-LAST:]), "passes": training.passes(Origin.TRAIN),
            "greedy_passes": training.passes(Origin.EVAL),
            "cpu_s": round(time.process_time() - began, 1),
        }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--task", default="reference_game", help="a template of factory models")
    asked.add_argument("--environment", default="{}", help="changes of its environment, as JSON")
    asked.add_argument("--arms", nargs="+", default=["grpo", "dipo", "diffu_grpo"])
    asked.add_argument("--groups", type=int, default=32, help="of a step of all arms")
    asked.add_argument("--block", type=int, default=4)
    asked.add_argument("--confidence", type=float, default=0.9, help="0: none")
    asked.add_argument("--rate", type=float, help="learning rate; the template's")
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--tokens", type=int, default=100_000)
    asked.add_argument("--evaluations", type=int, default=8)
    given = asked.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in given.arms if seed % 2 == 0 else reversed(given.arms):
            rows.append(played(arm, seed, given))
            print(json.dumps(rows[-1]), flush=True)
    found = {
        f"{arm} over {base}, {figure}": compared(rows, figure, base, arm)
        for base, arm in PAIRS
        if base in given.arms and arm in given.arms
        for figure in ("area", "end")
    }
    document = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": rows, "compared": found}
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
