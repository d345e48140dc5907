"""Two players see the same words, each in an order of its own, and score if both say the same one.

Neither hears the other: they have to agree on a convention while they train, such as the first word of the alphabet.
"""

import random

from sample_plugins.options import ROLES, WORDS, SameWordOptions
from workers.rollout.environments.base import Ask, Environment, Family, Outcome, Reply
from workers.rollout.environments.words import SPECIALS


class SameWord(Family[SameWordOptions]):
    roles = ROLES

    def vocabulary(self) -> tuple[str, ...]:
        return (*SPECIALS, "pick", *WORDS[: self.options.words])

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        drawn = random.Random(f"{task_seed} {held_out}")
        words = drawn.sample(WORDS[: self.options.words], self.options.shown)
        return _Episode({role: tuple(drawn.sample(words, len(words))) for role in ROLES})


class _Episode:
    def __init__(self, shown: dict[str, tuple[str, ...]]) -> None:
        self._shown = shown
        self._said: dict[str, str] = {}

    def asks(self) -> list[Ask]:
        if self._said:
            return []
        return [Ask(role, " ".join(("pick", *words)), 1, words) for role, words in self._shown.items()]

    def act(self, replies: list[Reply]) -> None:
        self._said = {reply.role: reply.text for reply in replies}

    def outcome(self) -> Outcome:
        left, right = (self._said[role] for role in ROLES)
        alike = left == right and left in self._shown["left"]
        return Outcome(dict.fromkeys(ROLES, float(alike)), float(alike), alike)

    def describe(self) -> dict[str, object]:
        return {"title": "Say the same word", "facts": {"words": ", ".join(sorted(self._shown["left"]))}}
