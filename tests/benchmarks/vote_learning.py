"""Does a vote teach where no answer is known? Against the true score, and against no training at all.

`python tests/benchmarks/vote_learning.py --out FILE`: a table of logits answers sums of two numbers, in the environment
of runs, with the shaping and the advantage of runs. It first clones answers of which a share is drawn at random, so it
is more often right than wrong in one way on most sums, and seldom right on any; of a share `--misled` of the sums it
clones one more than the sum in the place of the right answer. Then every arm plays the same sums until it has sampled
as many answers, of a token each: `vote` is paid by `majority_vote` and sees no score, `score` is paid by the
environment, and `none` learns nothing. Refused groups count like others. What is compared is the chance of a right
answer to the sums that are played, as the mean of evaluations along the way (area) and of the last one (end), with the
bootstrap interval of the mean difference over seeds. A table knows nothing of sums that it has not played, so none are
held out.
"""

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.rewards import row_rewards
from flexmarl.algorithms.shaping import SHAPERS, Shaper
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.environment import Sums
from flexmarl.contracts.specification.graphs import ALONE
from flexmarl.contracts.specification.shaping import SHAPING
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.language.answers import comparable
from tests.benchmarks.task_choice_learning import compared
from workers.rollout.environments.base import Reply
from workers.rollout.environments.sums import Numbers, SumsFamily

ARMS = ("none", "vote", "score")
FIGURES = ("area", "end")
TASKS = 8


class TablePolicy:
    """A distribution over answers for each sum; the last word of it is no answer."""

    def __init__(self, largest: int, rate: float, seed: int) -> None:
        self._rng = random.Random(seed)
        numbers, self.words = largest + 1, 2 * largest + 3
        self.logits = torch.zeros(numbers, numbers, self.words, requires_grad=True)
        self._optimizer = torch.optim.Adam([self.logits], lr=rate)

    def chances(self, asked: Numbers) -> torch.Tensor:
        return self.logits.detach()[asked].softmax(-1)

    def say(self, asked: Numbers) -> int:
        return self._rng.choices(range(self.words), self.chances(asked).tolist())[0]

    def go_on(self, rate: float) -> None:
        """Learn at another rate from now on."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def text(self, word: int) -> str:
        """Return a word as a reply."""
        return "I do not know" if word == self.words - 1 else str(word)

    def learn(self, asked: Sequence[Numbers], words: Sequence[int], weights: Sequence[float]) -> None:
        """Take a step along the mean of the weighted log-probabilities: the ratio of fresh tokens is 1."""
        first, second = (torch.tensor([one[place] for one in asked]) for place in (0, 1))
        said = self.logits[first, second].log_softmax(-1).gather(1, torch.tensor(words)[:, None])[:, 0]
        self._optimizer.zero_grad()
        (-(said * torch.tensor(weights)).mean()).backward()
        self._optimizer.step()


def outcome_of(family: SumsFamily, task: int, member: int, text: str) -> EpisodeOutcome:
    """Play an episode of one reply, as the core sees it."""
    environment = family.make(task, False, random.Random(0))
    environment.act([Reply("solver", text, tokens=1)])
    outcome = environment.outcome()
    return EpisodeOutcome(
        member=member, attempt=1, status=EpisodeStatus.FINISHED, scores=outcome.scores,
        team_score=outcome.team_score, answer=comparable(outcome.answer),
        samples=(SampleRef(role="solver", turn=0, tokens=1),),
    )  # fmt: skip


class Player:
    """Plays groups and learns from them as an arm is paid."""

    def __init__(self, arm: str, seed: int, given: argparse.Namespace) -> None:
        self.family = SumsFamily(Sums(largest=given.largest, held_out=1, graph=ALONE))
        self.policy = TablePolicy(given.largest, given.rate, seed)
        self._members = given.members
        self._advantage = ADVANTAGE.options("grpo", divide_by_std=True)
        self._shaper: Shaper[Any] = SHAPERS.make(
            SHAPING.options("majority_vote", least_share=given.least_share) if arm == "vote" else SHAPING.options()
        )
        self.groups = self.refused = 0
        self.votes: list[float] = []
        """Of each group with a vote that counts, what the answer is worth."""
        self._clone(seed, given)

    def _clone(self, seed: int, given: argparse.Namespace) -> None:
        """Learn answers to sums drawn at random, of which a share is wrong, in steps of 32."""
        rng = random.Random(f"clone {seed}")
        for _ in range(given.warmup // 32):
            asked = [rng.choice(self.family.training) for _ in range(32)]
            words = [self._shown(one, rng, given) for one in asked]
            self.policy.learn(asked, words, [1.0] * len(asked))

    def _shown(self, asked: Numbers, rng: random.Random, given: argparse.Namespace) -> int:
        """Return an answer that is cloned."""
        if rng.random() < given.wrong:
            return rng.randrange(self.policy.words)
        return sum(asked) + (random.Random(repr(asked)).random() < given.misled)

    def step(self, first: int, learns: bool) -> int:
        """Play groups and take a step on them; returns the answers that were sampled."""
        asked, words, weights = list[Numbers](), list[int](), list[float]()
        advantage, sums = ADVANTAGES.make(self._advantage), self.family.training
        for draw in range(first, first + TASKS):
            numbers = sums[draw % len(sums)]
            said = [self.policy.say(numbers) for _ in range(self._members)]
            group = [outcome_of(self.family, draw, n, self.policy.text(word)) for n, word in enumerate(said)]
            self.groups += 1
            if self._shaper.refusal(group):
                self.refused += 1
                continue
            self.votes += [worth for name, worth in self._shaper.figures(group).items() if name == "vote_score"]
            earned = self._shaper.shape_group({}, group, [row_rewards(self._advantage, one) for one in group])
            values = advantage.estimate(GROUP_KEYS["episode_group"], group, earned)
            asked, words = asked + [numbers] * len(said), words + said
            weights += [value for own in values for value in own]
        if learns and asked:
            self.policy.learn(asked, words, weights)
        return TASKS * self._members

    def right(self) -> float:
        """Return the chance of a right answer, over all sums that are played."""
        return statistics.mean(float(self.policy.chances(one)[sum(one)]) for one in self.family.training)

    def leading(self) -> float:
        """Return the share of sums whose likeliest answer is right: what a perfect vote on each would come to."""
        return statistics.mean(float(self.policy.chances(one).argmax() == sum(one)) for one in self.family.training)


def played(arm: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train until so many answers are sampled; evaluate every so many of them."""
    player = Player(arm, seed, given)
    start, leading, scores, tokens, draws = player.right(), player.leading(), list[float](), 0, 0
    for mark in (given.tokens * (number + 1) // given.evaluations for number in range(given.evaluations)):
        while tokens < mark:
            tokens += player.step(draws, arm != "none")
            draws += TASKS
        scores.append(player.right())
    return {
        "arm": arm, "seed": seed, "tokens": tokens, "start": start, "leading": leading, "right": scores,
        "area": statistics.mean(scores), "end": scores[-1], "refused": player.refused / player.groups,
        "votes_right": statistics.mean(player.votes) if player.votes else None,
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--largest", type=int, default=9, help="largest number in a sum")
    asked.add_argument("--wrong", type=float, default=0.5, help="share of cloned answers that are drawn at random")
    asked.add_argument("--misled", type=float, default=0.0, help="share of sums cloned as one more than they are")
    asked.add_argument("--warmup", type=int, default=1280, help="answers that are cloned before any arm goes on")
    asked.add_argument("--members", type=int, default=16)
    asked.add_argument("--least-share", type=float, default=0.3)
    asked.add_argument("--rate", type=float, default=0.05, help="learning rate of all arms")
    asked.add_argument("--tokens", type=int, default=32_000)
    asked.add_argument("--evaluations", type=int, default=8)
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--first-seed", type=int, default=1)
    given = asked.parse_args()
    found: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in ARMS:
            found.append(played(arm, seed, given))
            print(found[-1], flush=True)
    document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": found}
    document["compared"] = {
        f"{figure}, {arm}": compared(found, figure, "none", arm) for figure in FIGURES for arm in ARMS if arm != "none"
    } | {f"{figure}, vote from score": compared(found, figure, "score", "vote") for figure in FIGURES}
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["compared"], indent=1))


if __name__ == "__main__":
    main()
