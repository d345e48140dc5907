"""Does sharing help? Two installations that exchange rollouts against each by itself, at equal own rollouts.

`python tests/benchmarks/sharing_learning.py --out FILE [--task hot_cold]`: pairs of installations with other seeds
train the same template, through the real service in a process of its own, until each has played as many episodes with
its own engines. `shared`: groups of `--own` members of its own and as many of the other one's. `alone`: groups of
`--own` members, as many steps. `alone_large`: groups of twice as many members, half the steps. Compared is the share of
held-out tasks solved, as the mean of evaluations along the way (area) and of the last ones (end), and the mean score of
all episodes that the own engines played (earned), with the bootstrap interval of the mean difference over
installations. Foreign members are those of `workers.rollout.sharing`. In the task `shared_sums` words mean the same to
everybody: a small chat model answers sums in sentences (`tests.support.shared_sums`). With `--strengths` the two of a
pair were warmed up to know other halves of the sums.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.store.data.model_roots import ModelRoots
from tests.benchmarks.task_choice_learning import compared
from tests.support import shared_sums
from tests.support.exchange import Exchange, SharingTraining
from workers.models.opening import allow
from workers.rollout.datasets import DatasetLines

LAST = 3
ARMS = ("alone", "alone_large", "shared")
FIGURES = ("area", "end", "earned")
QUOTA = ("--rollouts-per-minute", "1000000", "--bytes-per-minute", str(2**30))
"""In one process a pair plays faster than installations do: with the usual quota it would wait."""


def lines_of(given: argparse.Namespace) -> DatasetLines | None:
    return shared_sums.lines_of(**json.loads(given.sums)) if given.task == shared_sums.NAME else None


def spec_of(arm: str, seed: int, given: argparse.Namespace, home: Path) -> ExperimentSpec:
    """Return what an installation trains; a chat model is written below its home."""
    members = given.own if arm == "alone" else 2 * given.own
    foreign = given.own if arm == "shared" else 0
    groups = {"tasks_per_step": given.groups, "micro_batch_groups": given.groups, "rollout_groups": given.groups}
    document: dict[str, Any] = {
        "seed": seed,
        "batch": {**groups, "episodes_per_task": members},
        "sampling": {
            "sharing": {
                "type": "exchange",
                "foreign": foreign,
                "publish": arm == "shared",
                "learn_from": given.learn_from,
            }
        },
    }
    rate = dict(zip(given.arms, given.rate * len(given.arms), strict=False))[arm] if given.rate else None
    if (lines := lines_of(given)) is not None:
        column = f"said_{seed % 2}" if given.strengths else "said"
        document |= shared_sums.document(home / str(seed), lines, rate, given.warmup, column)
        return resolve(document, template=shared_sums.TEMPLATE).spec
    if rate is not None:
        roles = resolve({}, template=given.task).spec.policies
        document["policies"] = {name: {"optimizer": {"learning_rate": rate}} for name in roles}
    return resolve(document, template=given.task).spec


def played(arm: str, seed: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Train a pair, step by step in turns, until each has played so many episodes itself."""
    began, loop = time.process_time(), asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as home, Exchange(Path(home) / "exchange", *QUOTA) as exchange:
        allow(ModelRoots((home,)))
        pair = [
            SharingTraining(
                spec_of(arm, number, given, Path(home)),
                f"{home}/{number}",
                exchange.member(f"lab-{number}"),
                loop,
                lines_of(given),
            )
            for number in (2 * seed, 2 * seed + 1)
        ]
        marks = [given.episodes * (number + 1) // given.evaluations for number in range(given.evaluations)]
        left = [list(marks) for _ in pair]
        for one in pair:
            one.evaluate()
        while any(left):
            for one, own in zip(pair, left, strict=True):
                if own:
                    one.step()
                    one.exchange()
                    if one.own >= own[0]:
                        one.evaluate()
                        own[:] = [mark for mark in own if mark > one.own]
        rows = []
        for one in pair:
            first, *scores = [each.solved for each in one.evaluations]
            rows.append(
                {
                    "arm": arm, "seed": one.spec.seed, "steps": one.steps_done, "own_episodes": one.own,
                    "shared_in": one.report.used, "shared_out": one.report.published,
                    "refused": dict(one.report.refused), "first": first, "solved": scores,
                    "area": statistics.mean(scores), "end": statistics.mean(scores[-LAST:]),
                    "earned": statistics.mean(one.own_scores[: given.episodes]),
                    "cpu_s": round(time.process_time() - began, 1),
                }
            )  # fmt: skip
            one.close()
        allow(ModelRoots())
        return rows


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--task", default="hot_cold", help="a template of factory models, or shared_sums")
    asked.add_argument(
        "--arms", nargs="+", choices=ARMS, default=list(ARMS), help="shared and what it is compared with"
    )
    asked.add_argument("--rate", type=float, nargs="+", help="learning rate: of all arms, or of each; the template's")
    asked.add_argument("--groups", type=int, default=8, help="of a step")
    asked.add_argument("--own", type=int, default=4, help="members of a group that the own engines play")
    asked.add_argument("--seeds", type=int, default=3, help="pairs of installations")
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--episodes", type=int, default=3840, help="own ones of each installation")
    asked.add_argument("--evaluations", type=int, default=8)
    asked.add_argument("--sums", default="{}", help="of shared_sums: what `lines_of` is given, as JSON")
    asked.add_argument("--warmup", type=int, help="of shared_sums: steps on its sentences before the first one")
    asked.add_argument("--strengths", action="store_true", help="of shared_sums: each of a pair knows another half")
    asked.add_argument("--learn-from", choices=("all", "successes"), default="all", help="of the other one's members")
    given = asked.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in given.arms:
            rows += played(arm, seed, given)
            print(rows[-2], rows[-1], sep="\n", flush=True)
    document: dict[str, Any] = {"settings": {key: str(value) for key, value in vars(given).items()}, "rows": rows}
    document["compared"] = {
        base: {figure: compared(rows, figure, base, "shared") for figure in FIGURES}
        for base in ARMS[:2]
        if base in given.arms and "shared" in given.arms
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["compared"], indent=1))


if __name__ == "__main__":
    main()
