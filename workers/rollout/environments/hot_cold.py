"""Hot or cold: a guesser looks for a hidden number, a hinter who knows it answers each wrong guess with one word.

Unlike the children's game the hints mean nothing at first; hinter and guesser agree on them by being rewarded. All
numbers are seen in training: evaluation asks whether every number is found. An episode has no randomness of its own.
"""

import random

from flexmarl.contracts.specification.environment import HotCold, hot_cold_score
from workers.rollout.environments.base import Ask, Demonstration, Environment, Family, Outcome, Reply
from workers.rollout.environments.words import SPECIALS, numerals, syllables


class HotColdFamily(Family[HotCold]):
    Options = HotCold

    roles: tuple[str, ...] = ("guesser", "hinter")

    def __init__(self, spec: HotCold) -> None:
        super().__init__(spec)
        self.numbers = numerals(spec.numbers)
        self.symbols = syllables(spec.symbols)
        self.guesses = spec.guesses

    def vocabulary(self) -> tuple[str, ...]:
        return (*SPECIALS, "find", "secret", "guess", *self.numbers, *self.symbols)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        return _Episode(self, self.numbers[task_seed % len(self.numbers)])

    def demonstrations(self, rng: random.Random, count: int) -> list[Demonstration]:
        """Return none: no hint is right before the team has agreed on a code."""
        return []


class _Episode:
    def __init__(self, family: HotColdFamily, secret: str) -> None:
        self._family = family
        self._secret = secret
        self._guesses: list[str] = []
        self._hints: list[str] = []

    def asks(self) -> list[Ask]:
        if self._found() or len(self._guesses) == self._family.guesses:
            return []
        if len(self._guesses) > len(self._hints):
            observation = f"secret {self._secret} guess {self._guesses[-1]}"
            return [Ask("hinter", observation, 1, self._family.symbols)]
        history = [word for pair in zip(self._guesses, self._hints, strict=True) for word in pair]
        return [Ask("guesser", " ".join(["find", *history]), 1, self._family.numbers)]

    def act(self, replies: list[Reply]) -> None:
        (reply,) = replies
        if reply.role == "guesser":
            self._guesses.append(reply.text)
        else:
            self._hints.append(reply.text)

    def outcome(self) -> Outcome:
        used, found = len(self._guesses), self._found()
        score = hot_cold_score(self._family.guesses, used) if found else 0.0
        return Outcome(dict.fromkeys(self._family.roles, score), score, found, facts={"guesses": float(used)})

    def describe(self) -> dict[str, object]:
        return {
            "title": f"Find the number {self._secret}",
            "facts": {"secret": self._secret, "guesses allowed": str(self._family.guesses)},
        }

    def _found(self) -> bool:
        return bool(self._guesses) and self._guesses[-1] == self._secret
