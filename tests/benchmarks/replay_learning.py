"""Does replay help? An archive of earlier groups against plain GRPO, at equal generated tokens.

`python tests/benchmarks/replay_learning.py --out FILE [--task hot_cold]`: both arms play the same template from the
same seeds until they have sampled as many tokens, in turns; they differ in nothing but the archive, the loss of both is
that of `--loss`. Compared is the share of held-out tasks solved, as the mean of evaluations along the way (area) and of
the last ones (end), with the bootstrap interval of the mean difference over seeds. What is drawn is decided by the
functions that runs use (`flexmarl.algorithms.replay`), and rows are those that were trained before, bit for bit.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from flexmarl.algorithms.replay import ArchivedGroup, add, draw, expire, replayed_groups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from tests.benchmarks.task_choice_learning import compared
from tests.support.local_training import LocalTraining
from workers.training.wire import TrainRow

LOSSES: dict[str, dict[str, Any]] = {
    "ppo_clip": {"loss": {"type": "ppo_clip"}},
    "truncated_importance": {"correction": {"type": "truncated_importance"}},
}
LAST = 3
FIGURES = ("area", "end", "training_score")


class Replaying(LocalTraining):
    """Takes each step on groups of the archive too, as `sampling.replay` says."""

    def __init__(self, spec: ExperimentSpec, home: str, device: str = "cpu") -> None:
        super().__init__(spec, home, device)
        self.replayed = 0
        self._archives: dict[str, list[ArchivedGroup]] = {}
        self._kept: dict[tuple[str, int], list[TrainRow]] = {}
        """(policy, draw) -> rows of a group in the archive, as they were trained."""

    def _train(self, policy: str, groups: list[list[TrainRow]], step: int) -> None:
        rule, archive = self.spec.sampling.replay, self._archives.setdefault(policy, [])
        expire(archive, step, rule.max_age)
        again = draw(archive, replayed_groups(len(groups), rule.share), step, rule.max_uses, rule.order)
        older = [self._kept[policy, one.draw] for one in again]
        for rows in groups:
            first = int(rows[0].pair.partition(":")[0])
            self._kept[policy, first] = rows
            add(archive, ArchivedGroup(step, first, step, [_row(row) for row in rows]))
        there = {one.draw for one in archive}
        self._kept = {key: rows for key, rows in self._kept.items() if key[0] != policy or key[1] in there}
        self.replayed += sum(map(len, older))
        super()._train(policy, [*groups, *older], step)


def _row(row: TrainRow) -> tuple[int, int, str, int, tuple[float, ...], float, int]:
    role = row.pair.partition(":")[2]
    return row.member, 1, role, row.turn, tuple(row.advantages), 1.0, len(row.response) // 4


def played(arm: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train until so many tokens are sampled; evaluate every so many steps."""
    archive = {
        "type": "archive", "share": given.share, "max_age": given.max_age, "max_uses": given.max_uses,
        "order": given.order,
    }  # fmt: skip
    changes: dict[str, Any] = {
        "seed": seed,
        "algorithm": LOSSES[given.loss],
        "batch": {"tasks_per_step": given.groups, "micro_batch_groups": given.groups, "rollout_groups": given.groups},
        "sampling": {"replay": archive if arm == "replay" else "none"},
    }
    if given.rate is not None:
        roles = resolve({}, template=given.task).spec.policies
        changes["policies"] = {name: {"optimizer": {"learning_rate": given.rate}} for name in roles}
    began = time.process_time()
    with tempfile.TemporaryDirectory() as home:
        made = Replaying if arm == "replay" else LocalTraining
        training = made.of_template(given.task, home, changes)
        training.train(given.tokens, given.evaluations)
        scores = [one.solved for one in training.evaluations]
        return {
            "arm": arm, "seed": seed, "steps": training.steps_done, "tokens": training.tokens, "solved": scores,
            "area": statistics.mean(scores), "end": statistics.mean(scores[-LAST:]),
            "training_score": statistics.mean(training.rewards),
            "replayed_rows": training.replayed if isinstance(training, Replaying) else 0,
            "cpu_s": round(time.process_time() - began, 1),
        }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--task", default="hot_cold", help="a template of factory models")
    asked.add_argument("--loss", choices=LOSSES, default="ppo_clip", help="of both arms")
    asked.add_argument("--rate", type=float, help="learning rate of both arms; by default the template's")
    asked.add_argument("--groups", type=int, default=8, help="of a step of both arms")
    asked.add_argument("--share", type=float, default=0.5)
    asked.add_argument("--max-age", type=int, default=4)
    asked.add_argument("--max-uses", type=int, default=1)
    asked.add_argument("--order", choices=("earliest_deadline", "newest"), default="newest")
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--tokens", type=int, default=20_000)
    asked.add_argument("--evaluations", type=int, default=8)
    given = asked.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in ("plain", "replay") if seed % 2 == 0 else ("replay", "plain"):
            rows.append(played(arm, seed, given))
            print(rows[-1], flush=True)
    document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": rows}
    document["compared"] = {figure: compared(rows, figure, "plain", "replay") for figure in FIGURES}
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["compared"], indent=1))


if __name__ == "__main__":
    main()
