"""Does sharing help where words mean the same to everybody? Installations that answer sums, at equal own answers.

`python tests/benchmarks/sharing_sums.py --out FILE`: each installation is a table of logits over the answers to sums,
in the environment of runs and with the advantage of runs, that has cloned answers of which half are drawn at random, so
it is seldom right. What it says is a number in one of many sentences. Pairs with other seeds play the same sums in the
same order: `shared` in groups of `--own` answers of its own and as many of the other one, taken, scored and chosen as
runs do (`workers.rollout.shared_pool`, `sharing`); `alone` in groups of `--own`, `alone_large` of twice as many, half
the steps. All give as many answers of their own, and `shared` and `alone` take as many steps where no place stays
empty. What is compared is the chance of a right answer to the sums that are played, as the mean of evaluations along
the way (area) and of the last one (end), with the bootstrap interval of the mean difference over installations. A table
knows nothing of sums that it has not played, so none are held out. With `--sentences` absent numbers alone are said:
then contents soon repeat, and each counts once.
"""

import argparse
import json
import random
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.rewards import row_rewards
from flexmarl.algorithms.selection import max_variance
from flexmarl.contracts.shared_rollouts import PublishedRollout, SharedRollout, SharedTurn, task_digest
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.environment import Sums
from flexmarl.contracts.specification.graphs import ALONE
from flexmarl.language.answers import last_number
from tests.benchmarks.task_choice_learning import compared
from tests.benchmarks.vote_learning import TASKS, TablePolicy, outcome_of
from tests.support.shared_sums import sentence
from workers.rollout.environments.sums import SumsFamily
from workers.rollout.shared_pool import SharedPool
from workers.rollout.sharing import TRIED

ARMS = ("alone", "alone_large", "shared")
FIGURES = ("area", "end")
CLONED = 0.05
"""Learning rate before any arm goes on."""


@dataclass(slots=True)
class Counts:
    own: int = 0
    used: int = 0
    steps: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Installation:
    """A table that answers sums, and what others published of them."""

    def __init__(self, name: str, seed: int, rate: float, given: argparse.Namespace) -> None:
        self.family = SumsFamily(Sums(largest=given.largest, held_out=1, graph=ALONE))
        self.policy, self.name, self.sentences = TablePolicy(given.largest, CLONED, seed), name, given.sentences
        self.pool, self.counts, self.told = SharedPool(), Counts(), list[SharedRollout]()
        self._rng = random.Random(f"sentences {seed}")
        self._advantage = ADVANTAGE.options("grpo", divide_by_std=True)
        self._clone(seed, given)
        self.policy.go_on(rate)

    def _clone(self, seed: int, given: argparse.Namespace) -> None:
        """Learn answers to sums drawn at random, of which a share is, in steps of 32."""
        rng = random.Random(f"clone {seed}")
        for _ in range(given.warmup // 32):
            asked = [rng.choice(self.family.training) for _ in range(32)]
            words = [rng.randrange(self.policy.words) if rng.random() < given.wrong else sum(one) for one in asked]
            self.policy.learn(asked, words, [1.0] * len(asked))

    def step(self, first: int, own: int, foreign: int) -> None:
        """Play groups and take a step on them."""
        advantage, sums = ADVANTAGES.make(self._advantage), self.family.training
        asked, words, weights = list[tuple[int, ...]](), list[int](), list[float]()
        for draw in range(first, first + TASKS):
            numbers = sums[draw % len(sums)]
            others = self._others(draw, foreign)
            said = [self.policy.say(numbers) for _ in range(own + foreign - len(others))]
            texts = [self._sentence(word) for word in said]
            self.counts.own += len(said)
            task = self._task(draw)
            self.told += [SharedRollout(task, (SharedTurn("solver", text, True),)) for text in texts]
            group = [outcome_of(self.family, draw, n, text) for n, text in enumerate([*texts, *others])]
            values = advantage.estimate(
                GROUP_KEYS["episode_group"], group, [row_rewards(self._advantage, one) for one in group]
            )
            words += said + [self._word(text) for text in others]
            asked += [numbers] * len(group)
            weights += [value for episode in values for value in episode]
        self.policy.learn(asked, words, weights)
        self.counts.steps += 1

    def _others(self, draw: int, places: int) -> list[str]:
        """Return what others said to a sum, at most so many: of twice as many those whose scores differ most."""
        found = self.pool.of_task(self._task(draw), TRIED * places) if places else []
        texts = [one.rollout.turns[0].text for one in found]
        outcomes = [outcome_of(self.family, draw, n, text) for n, text in enumerate(texts)]
        chosen = [one.member for one in max_variance(outcomes, places)] if found else []
        for place in chosen:
            self.pool.take(found[place])
        self.counts.used += len(chosen)
        return [texts[place] for place in chosen]

    def hear(self, number: int, member: str, rollout: SharedRollout) -> None:
        if refused := self.pool.add(PublishedRollout(number, member, rollout)):
            self.counts.refused[refused] += 1

    def right(self) -> float:
        """Return the chance of a right answer, over all sums that are played."""
        return statistics.mean(float(self.policy.chances(one)[sum(one)]) for one in self.family.training)

    def _task(self, draw: int) -> str:
        return task_digest("sums", self.family.make(draw, False, random.Random(0)).describe())

    def _sentence(self, word: int) -> str:
        unknown = word == self.policy.words - 1
        return self.policy.text(word) if unknown or not self.sentences else sentence(word, self._rng)

    def _word(self, text: str) -> int:
        number = last_number(text)
        return self.policy.words - 1 if number is None else int(number)


def played(arm: str, seed: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Train a pair until each has given so many answers itself."""
    rate = dict(zip(ARMS, given.rates, strict=True))[arm]
    pair = [Installation(f"lab-{number}", number, rate, given) for number in (2 * seed, 2 * seed + 1)]
    starts, scores, draws, published = [one.right() for one in pair], [list[float]() for _ in pair], [0, 0], 0
    own = 2 * given.own if arm == "alone_large" else given.own
    marks = [given.answers * (number + 1) // given.evaluations for number in range(given.evaluations)]
    while any(len(one) < len(marks) for one in scores):
        for number, (one, other) in enumerate(zip(pair, reversed(pair), strict=True)):
            if len(scores[number]) == len(marks):
                continue
            one.step(draws[number], own, given.own if arm == "shared" else 0)
            draws[number] += TASKS
            for rollout in one.told:
                published += 1
                other.hear(published, one.name, rollout)
            one.told.clear()
            if one.counts.own >= marks[len(scores[number])]:
                scores[number].append(one.right())
    return [
        {
            "arm": arm, "seed": 2 * seed + number, "start": starts[number], "right": scores[number],
            "area": statistics.mean(scores[number]), "end": scores[number][-1], "steps": one.counts.steps,
            "own": one.counts.own, "used": one.counts.used, "refused": dict(one.counts.refused),
        }
        for number, one in enumerate(pair)
    ]  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--largest", type=int, default=9, help="largest number in a sum")
    asked.add_argument("--wrong", type=float, default=0.5, help="share of cloned answers that are drawn at random")
    asked.add_argument("--warmup", type=int, default=1280, help="answers that are cloned before any arm goes on")
    asked.add_argument("--own", type=int, default=4, help="answers of a group that are an installation's own")
    asked.add_argument("--rates", type=float, nargs=3, default=[0.05] * 3, help=f"learning rates of {', '.join(ARMS)}")
    asked.add_argument("--answers", type=int, default=3200, help="own ones of each installation")
    asked.add_argument("--evaluations", type=int, default=8)
    asked.add_argument("--sentences", action=argparse.BooleanOptionalAction, default=True)
    asked.add_argument("--seeds", type=int, default=5, help="pairs of installations")
    asked.add_argument("--first-seed", type=int, default=0)
    given = asked.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in ARMS:
            rows += played(arm, seed, given)
            print(rows[-2], rows[-1], sep="\n", flush=True)
    document: dict[str, Any] = {"settings": {key: str(value) for key, value in vars(given).items()}, "rows": rows}
    document["compared"] = {
        f"{figure} over {base}": compared(rows, figure, base, "shared") for figure in FIGURES for base in ARMS[:2]
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["compared"], indent=1))


if __name__ == "__main__":
    main()
