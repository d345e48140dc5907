"""Do members that continue others help? Against plain GRPO, at equal generated tokens.

`python tests/benchmarks/continuation_learning.py --out FILE [--arms plain trace uniform]`: all arms play the same tasks
of a template from the same seeds until they have sampled as many tokens, in turns; they differ in
`sampling.branch_controller` alone. `uniform` is `trace` with `predictor: none`, for which all prefixes look alike; what
an arm `echo` begins replies with counts once, for the member that said it. The task `shared_sums` is sums that a small
chat model answers in sentences (`tests.support.shared_sums`).
Compared with the first arm is the share of held-out tasks solved, as the mean of evaluations along the way (area) and
of the last ones (end), with the bootstrap interval of the mean difference over seeds. Episodes, choices, predictor and
advantages are those of runs (`workers.rollout.continuing`, `flexmarl.algorithms`).
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from flexmarl.contracts.resolve import resolve
from flexmarl.store.data.model_roots import ModelRoots
from tests.benchmarks.task_choice_learning import compared
from tests.support import shared_sums
from tests.support.local_trees import LocalTrees
from workers.models.opening import allow

ARMS = {"plain": "none", "trace": "trace", "uniform": "trace", "echo": "echo"}
IMITATION = {"batch_size": 256, "learning_rate": 0.003, "max_seconds": 60.0}
LAST = 3
FIGURES = ("area", "end", "training_score", "mixed")


def policy_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return what is asked for of a policy, beside what the template says of it."""
    changes: dict[str, Any] = {}
    if given.rate is not None:
        changes["optimizer"] = {"type": "adamw", "learning_rate": given.rate}
    if given.imitation is not None:
        changes["warmup"] = IMITATION | {"steps": given.imitation}
    return changes


def begun(changes: dict[str, Any], given: argparse.Namespace, home: str) -> LocalTrees:
    """Begin a run of the task that is given."""
    if given.task != shared_sums.NAME:
        roles = resolve({}, template=given.task).spec.policies
        changes["policies"] = {name: policy_of(given) for name in roles}
        changes["environment"] = json.loads(given.environment)
        return LocalTrees(resolve(changes, template=given.task).spec, home)
    allow(ModelRoots((home,)))
    lines = shared_sums.lines_of(**json.loads(given.environment))
    changes |= shared_sums.document(Path(home), lines, given.rate, given.imitation)
    return LocalTrees(resolve(changes, template=shared_sums.TEMPLATE).spec, home, lines=lines)


def played(arm: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train until so many tokens are sampled; evaluate every so many."""
    controller: dict[str, Any] = {"type": ARMS[arm]}
    if arm == "echo":
        controller |= {"share": given.share, **json.loads(given.echo)}
    elif arm != "plain":
        controller["predictor"] = "none" if arm == "uniform" else "fitted"
        controller |= {"share": given.share, "most_per_prefix": given.most_per_prefix, "lone_turns": given.lone_turns}
    changes: dict[str, Any] = {
        "seed": seed,
        "algorithm": {"loss": {"type": "ppo_clip", "aggregation": given.aggregation},
                      "advantage": {"type": "grpo", "per_turn": False, "divide_by_std": given.divide_by_std}},
        "batch": {"tasks_per_step": given.groups, "micro_batch_groups": given.groups, "rollout_groups": given.groups,
                  "episodes_per_task": given.members},
        "sampling": {"branch_controller": controller},
    }  # fmt: skip
    began = time.process_time()
    with tempfile.TemporaryDirectory() as home:
        training = begun(changes, given, home)
        training.train(given.tokens, given.evaluations)
        scores = [one.solved for one in training.evaluations]
        return {
            "arm": arm, "seed": seed, "steps": training.steps_done, "tokens": training.tokens, "solved": scores,
            "area": statistics.mean(scores), "end": statistics.mean(scores[-LAST:]),
            "training_score": statistics.mean(training.rewards),
            "mixed": training.mixed / (training.steps_done * given.groups), "continued": training.continued,
            "weights": training.prefixes.weights, "cpu_s": round(time.process_time() - began, 1),
        }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--task", default="hot_cold", help="a template of factory models, or shared_sums")
    asked.add_argument("--environment", default="{}", help="changes of its environment, or of its sums, as JSON")
    asked.add_argument("--echo", default="{}", help="what stands beside share of the arm echo, as JSON")
    asked.add_argument("--groups", type=int, default=8, help="of a step")
    asked.add_argument("--members", type=int, default=8)
    asked.add_argument("--rate", type=float, help="learning rate; the template's")
    asked.add_argument("--imitation", type=int, help="steps before the first one that is compared; the template's")
    asked.add_argument("--aggregation", default="token_mean")
    asked.add_argument("--divide-by-std", action=argparse.BooleanOptionalAction, default=True)
    asked.add_argument("--share", type=float, default=0.5)
    asked.add_argument("--most-per-prefix", type=int, default=2)
    asked.add_argument("--lone-turns", default="root")
    asked.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="the first is the base")
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--tokens", type=int, default=20_000)
    asked.add_argument("--evaluations", type=int, default=8)
    given = asked.parse_args()
    base, *others = given.arms
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in given.arms:
            rows.append(played(arm, seed, given))
            print(rows[-1], flush=True)
        document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": rows}
        document["compared"] = {
            f"{other}: {figure}": compared(rows, figure, base, other) for other in others for figure in FIGURES
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["compared"], indent=1))


if __name__ == "__main__":
    main()
