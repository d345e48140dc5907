"""Does a semi-online rollout on logged conversations help? Against cloning them, and against GRPO without patches.

`python tests/benchmarks/logged_learning.py --out FILE`: a tabular policy first clones logged turns for a few steps;
every arm goes on from there, in the environment of runs and with the advantages of runs. `grpo` and `semi_online` play
the same conversations until they have sampled as many turns, of a token each: the one ends an episode at the first turn
that is not the logged one and compares episodes, the other patches and has the advantage of two levels; `grpo_patched`
and `two_level` are between them. `cloning` learns as many logged turns more, by the same optimizer. Compared is the
score of semi-online performance on held-out conversations, as the mean of evaluations along the way (area) and of the
last one (end), with the bootstrap interval of the mean difference over seeds.

A conversation keeps a running sum: the user says a number, the assistant the sum of all so far modulo `--modulus`. The
policy has a distribution for each turn, sum that it said or reads last, and number; each turn is learned by itself.
With `--wrong`, so many of the logged turns to train on are not the sum.
"""

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.rewards import row_rewards
from flexmarl.contracts.specification.advantages import ADVANTAGE, AdvantageOptions
from flexmarl.contracts.specification.logged import LoggedEpisodes
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.language.dataset_rows import DatasetRow, digest_of, to_line
from flexmarl.language.messages import Message
from tests.benchmarks.task_choice_learning import compared
from workers.rollout.datasets import DatasetLines, keep
from workers.rollout.environments.base import Environment, Reply
from workers.rollout.environments.logged_episodes import LoggedFamily

ARMS: dict[str, tuple[bool, str]] = {
    "cloning": (False, ""),
    "grpo": (False, "grpo"),
    "grpo_patched": (True, "grpo"),
    "two_level": (False, "two_level"),
    "semi_online": (True, "two_level"),
}
"""Name -> whether it patches, and its advantage."""
FIGURES = ("area", "end")
MEMBERS = TASKS = 8
BATCH = 32
"""Turns that a step of cloning learns, of as many conversations."""


def rows(seed: int, given: argparse.Namespace) -> DatasetLines:
    """Return different conversations, of which no held-out one is trained on."""
    rng, found = random.Random(seed), dict[tuple[int, ...], bytes]()
    while len(found) < given.rows + given.held_out:
        numbers = tuple(rng.randrange(given.modulus) for _ in range(given.turns))
        held_out = len(found) < given.held_out
        said: list[Message] = []
        total = 0
        for number in numbers:
            total = (total + number) % given.modulus
            wrong = not held_out and rng.random() < given.wrong
            total = rng.randrange(given.modulus) if wrong else total
            said += [Message("user", f"+{number}"), Message("assistant", str(total))]
        found.setdefault(numbers, to_line(DatasetRow(tuple(said[:-1]), said[-1].content)))
    lines = [(number < given.held_out, line) for number, line in enumerate(found.values())]
    return keep(digest_of(lines), lines)


@dataclass(slots=True)
class Turn:
    """What a policy read, as an index of its table, and said."""

    at: tuple[int, int, int]
    word: int


@dataclass(slots=True)
class Episode:
    environment: Environment
    last: int = 0
    """The sum that was said last."""
    turns: list[Turn] = field(default_factory=list)


class TablePolicy:
    """A distribution over sums for each turn, last sum and number."""

    def __init__(self, turns: int, modulus: int, rate: float, seed: int) -> None:
        self._rng = random.Random(seed)
        self.logits = torch.zeros(turns, modulus, modulus, modulus, requires_grad=True)
        self._optimizer = torch.optim.Adam([self.logits], lr=rate)
        self._words = range(modulus)
        self._chances = self.logits.detach().softmax(-1).tolist()

    def say(self, episode: Episode, greedy: bool) -> Reply:
        """Answer what an episode asks."""
        messages = episode.environment.asks()[0].messages
        earlier = [int(one.content) for one in messages if one.role == "assistant"]
        at = (len(episode.turns), earlier[-1] if earlier else episode.last, int(messages[-1].content))
        chances = self._chances[at[0]][at[1]][at[2]]
        word = chances.index(max(chances)) if greedy else self._rng.choices(self._words, chances)[0]
        episode.turns.append(Turn(at, word))
        episode.last = word
        return Reply("solver", str(word), tokens=1)

    def learn(self, turns: Sequence[Turn], weights: Sequence[float]) -> None:
        """Take a step along the mean of the weighted log-probabilities: the ratio of fresh tokens is 1."""
        places = tuple(torch.tensor([turn.at[axis] for turn in turns]) for axis in range(3))
        words = torch.tensor([turn.word for turn in turns])
        said = self.logits[places].log_softmax(-1).gather(1, words.unsqueeze(1)).squeeze(1)
        loss = -(said * torch.tensor(weights)).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._chances = self.logits.detach().softmax(-1).tolist()


def play(family: LoggedFamily, policy: TablePolicy, task: int, held_out: bool) -> Episode:
    """Play an episode to its end; greedily where it is held out."""
    episode = Episode(family.make(task, held_out, random.Random(0)))
    while episode.environment.asks():
        episode.environment.act([policy.say(episode, held_out)])
    return episode


def outcome_of(member: int, episode: Episode) -> EpisodeOutcome:
    """Return an episode as the core sees it."""
    outcome = episode.environment.outcome()
    earned = [outcome.turn_rewards["solver", number] for number in range(len(episode.turns))]
    samples = tuple(SampleRef(role="solver", turn=n, tokens=1, reward=reward) for n, reward in enumerate(earned))
    score = outcome.team_score
    return EpisodeOutcome(
        member=member,
        attempt=1,
        status=EpisodeStatus.FINISHED,
        scores=outcome.scores,
        team_score=score,
        samples=samples,
    )


def step(family: LoggedFamily, policy: TablePolicy, options: AdvantageOptions, first: int) -> int:
    """Play groups and take a step on them; returns the turns that were sampled."""
    advantage, key = ADVANTAGES.make(options), GROUP_KEYS["episode_group"]
    turns: list[Turn] = []
    weights: list[float] = []
    for draw in range(first, first + TASKS):
        group = [play(family, policy, draw, False) for _ in range(MEMBERS)]
        outcomes = [outcome_of(member, episode) for member, episode in enumerate(group)]
        values = advantage.estimate(key, outcomes, [row_rewards(options, one) for one in outcomes])
        turns += [turn for episode in group for turn in episode.turns]
        weights += [value for own in values for value in own]
    policy.learn(turns, weights)
    return len(turns)


def demonstrated(family: LoggedFamily, draw: int) -> list[Turn]:
    """Return the logged turns of a task as they would be read and said."""
    environment, last, found = family.make(draw, False, random.Random(0)), 0, list[Turn]()
    logged = str(environment.describe()["facts"]["logged"]).splitlines()  # type: ignore[index]
    for asked, said in zip(logged[::2], logged[1::2], strict=True):
        word = int(said.removeprefix("assistant: "))
        found.append(Turn((len(found), last, int(asked.removeprefix("user: "))), word))
        last = word
    return found


def clone(family: LoggedFamily, policy: TablePolicy, seed: int, turns: int, shown: int) -> int:
    """Learn so many logged turns, `shown` having been learned; returns how many have been then."""
    rng, last = random.Random(f"{seed} {shown}"), shown + turns
    while shown < last:
        some = [rng.choice(demonstrated(family, rng.randrange(1 << 20))) for _ in range(min(BATCH, last - shown))]
        policy.learn(some, [1.0] * len(some))
        shown += len(some)
    return shown


def held_out(family: LoggedFamily, policy: TablePolicy, tasks: int) -> float:
    """Return the score of semi-online performance on the held-out conversations, greedily."""
    return statistics.mean(play(family, policy, task, True).environment.outcome().facts["sop"] for task in range(tasks))


def played(arm: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train until so many turns are sampled, or cloned; evaluate every so many of them."""
    patches, named = ARMS[arm]
    options = LoggedEpisodes(most_turns=given.turns, most_patches=given.patches if patches else 0)
    family = LoggedFamily(options)
    family.lines = rows(seed, given)
    policy = TablePolicy(given.turns, given.modulus, given.rate, seed)
    clone(family, policy, seed, given.warmup, 0)
    start, scores, turns, draws = held_out(family, policy, given.held_out), [], 0, 0
    for mark in (given.tokens * (number + 1) // given.evaluations for number in range(given.evaluations)):
        if not named:
            turns = clone(family, policy, seed, mark - turns, turns)
        while turns < mark:
            turns += step(family, policy, ADVANTAGE.options(named, divide_by_std=True), draws)
            draws += TASKS
        scores.append(held_out(family, policy, given.held_out))
    return {
        "arm": arm, "seed": seed, "turns": turns, "start": start, "sop": scores,
        "area": statistics.mean(scores), "end": scores[-1],
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--rows", type=int, default=400, help="conversations to train on")
    asked.add_argument("--held-out", type=int, default=100)
    asked.add_argument("--turns", type=int, default=6)
    asked.add_argument("--modulus", type=int, default=9)
    asked.add_argument("--wrong", type=float, default=0.0, help="share of wrong logged turns to train on")
    asked.add_argument("--warmup", type=int, default=640, help="logged turns that are cloned before any arm goes on")
    asked.add_argument("--rate", type=float, default=0.05, help="learning rate of all arms")
    asked.add_argument("--patches", type=int, default=2)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--tokens", type=int, default=8000)
    asked.add_argument("--evaluations", type=int, default=4)
    given = asked.parse_args()
    found: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for arm in ARMS:
            found.append(played(arm, seed, given))
            print(found[-1], flush=True)
    document: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(given).items()}, "rows": found}
    document["compared"] = {
        f"{figure}, {arm}": compared(found, figure, arm, "semi_online")
        for figure in FIGURES
        for arm in ARMS
        if arm != "semi_online"
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["compared"], indent=1))


if __name__ == "__main__":
    main()
