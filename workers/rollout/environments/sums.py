"""Sums in words: a solver answers a question such as `What is 7+5?`, a reviser reads the answer and answers again.

They may do so for several rounds, in which each reads what the other said last. Both speak in messages, so any model
with a chat template can play. Each is paid for the last number that it wrote itself. Tasks are ordered sums; those of
the same numbers are on one side of the split, so that no held-out sum can be known from its mirror. An episode has no
randomness of its own.
"""

import random
import re
from functools import cache
from hashlib import sha256
from itertools import combinations_with_replacement, permutations

from flexmarl.contracts.specification.environment import Sums
from flexmarl.language.messages import Message
from workers.rollout.environments.base import Ask, Environment, Family, Outcome, Reply

Numbers = tuple[int, ...]

_NUMBER = re.compile(r"-?\d+")


class SumsFamily(Family[Sums]):
    Options = Sums

    roles: tuple[str, ...] = ("solver", "reviser")

    def __init__(self, spec: Sums) -> None:
        super().__init__(spec)
        self.reply_tokens = spec.reply_tokens
        self.turns = spec.rounds * len(self.roles)
        self.training, self.held_out = split(spec.largest, spec.terms, spec.held_out)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        sums = self.held_out if held_out else self.training
        return _Episode(self, sums[task_seed % len(sums)])


@cache
def split(largest: int, terms: int, held_out: int) -> tuple[tuple[Numbers, ...], tuple[Numbers, ...]]:
    """List sums of `terms` numbers up to `largest` as (training, held out): at least `held_out` of these.

    Sums of the same numbers in another order are on one side. The order is that of a digest, so it is the same
    everywhere.
    """
    kinds = sorted(
        combinations_with_replacement(range(largest + 1), terms), key=lambda kind: sha256(repr(kind).encode()).digest()
    )
    sides: tuple[list[Numbers], list[Numbers]] = ([], [])
    for kind in kinds:
        sides[len(sides[1]) < held_out].extend(sorted(set(permutations(kind))))
    return tuple(sides[0]), tuple(sides[1])


def last_number(text: str) -> int | None:
    """Return the last whole number that a text holds, None for a text without one."""
    found = _NUMBER.findall(text)
    return int(found[-1][:20]) if found else None


class _Episode:
    def __init__(self, family: SumsFamily, numbers: Numbers) -> None:
        self._family = family
        self._question = f"What is {'+'.join(map(str, numbers))}? Answer with only the number."
        self._sum = sum(numbers)
        self._said: list[str] = []

    def asks(self) -> list[Ask]:
        turn, roles = len(self._said), self._family.roles
        if turn == self._family.turns:
            return []
        role = roles[turn % len(roles)]
        heard = f"A colleague said: {self._said[-1].strip() or 'nothing'}" if self._said else ""
        messages: tuple[Message, ...]
        if turn < len(roles):
            text = f"{self._question} {heard}".strip()
            messages = (Message("system", f"You are the {role} of a team of two."), Message("user", text))
        else:
            messages = (Message("user", f"{heard}. Answer again with only the number."),)
        return [Ask(role, "", self._family.reply_tokens, messages=messages)]

    def act(self, replies: list[Reply]) -> None:
        (reply,) = replies
        self._said.append(reply.text)

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        roles = self._family.roles
        return {
            (roles[turn % len(roles)], turn // len(roles)): float(last_number(text) == self._sum)
            for turn, text in enumerate(self._said)
        }

    def outcome(self) -> Outcome:
        earned, last = self.turn_rewards(), self._family.turns // len(self._family.roles) - 1
        scores = {role: earned[role, last] for role in self._family.roles}
        changed = scores["reviser"] - scores["solver"]
        return Outcome(scores, scores["reviser"], scores["reviser"] == 1.0, earned, {"revised": changed})

    def describe(self) -> dict[str, object]:
        return {"title": self._question.split("?")[0] + "?", "facts": {"answer": str(self._sum)}}
