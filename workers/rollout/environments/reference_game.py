"""The reference game: a speaker names an object with words that mean nothing yet, a listener says what it was.

Nothing but the shared reward gives the words a meaning. All objects are seen in training: evaluation asks whether the
invented code is complete, not whether it generalises. An episode has no randomness of its own.
"""

import random

from flexmarl.contracts.specification.environment import ReferenceGame
from workers.rollout.environments.base import Ask, Demonstration, Environment, Family, Outcome, Reply
from workers.rollout.environments.words import SPECIALS, syllables

_ATTRIBUTES = (
    ("red", "blue", "green", "yellow", "black", "white", "brown", "pink"),
    ("circle", "square", "star", "triangle", "cross", "heart", "moon", "ring"),
    ("small", "big", "tiny", "huge", "thin", "thick", "short", "long"),
    ("wood", "glass", "stone", "paper", "metal", "clay", "wool", "ice"),
)


class ReferenceGameFamily(Family[ReferenceGame]):
    """Objects are tuples of one word per attribute; task seeds walk through all of them."""

    Options = ReferenceGame

    roles: tuple[str, ...] = ("speaker", "listener")

    def __init__(self, spec: ReferenceGame) -> None:
        super().__init__(spec)
        self.attributes = tuple(words[: spec.values] for words in _ATTRIBUTES[: spec.attributes])
        self.symbols = syllables(spec.symbols)
        self.message_length = spec.message_length

    def vocabulary(self) -> tuple[str, ...]:
        return (*SPECIALS, "name", "hear", *(word for words in self.attributes for word in words), *self.symbols)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        target = []
        for words in self.attributes:
            task_seed, value = divmod(task_seed, len(words))
            target.append(words[value])
        return _Episode(self, tuple(target))

    def demonstrations(self, rng: random.Random, count: int) -> list[Demonstration]:
        """Return none: no code is right before the team has agreed on one."""
        return []


class _Episode:
    def __init__(self, family: ReferenceGameFamily, target: tuple[str, ...]) -> None:
        self._family = family
        self._target = target
        self._message: str | None = None
        self._answer: list[str] | None = None

    def asks(self) -> list[Ask]:
        family = self._family
        if self._message is None:
            return [Ask("speaker", " ".join(("name", *self._target)), family.message_length, family.symbols)]
        if self._answer is None:
            words = tuple(word for words in family.attributes for word in words)
            return [Ask("listener", f"hear {self._message}", len(self._target), words)]
        return []

    def act(self, replies: list[Reply]) -> None:
        (reply,) = replies
        if self._message is None:
            self._message = reply.text
        else:
            self._answer = reply.text.split()

    def outcome(self) -> Outcome:
        right = sum(said == meant for said, meant in zip(self._answer or [], self._target, strict=False))
        score = right / len(self._target)
        return Outcome(dict.fromkeys(self._family.roles, score), score, right == len(self._target))

    def describe(self) -> dict[str, object]:
        return {"title": f"Name the {' '.join(self._target)}", "facts": {"object": " ".join(self._target)}}
