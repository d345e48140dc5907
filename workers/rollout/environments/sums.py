"""Sums in words: a team answers a question such as `What is 7+5?`, in the order of its graph.

All speak in messages, so any model with a chat template can play. An answer is the last number of a reply. Tasks are
ordered sums; those of the same numbers are on one side of the split, so that no held-out sum can be known from its
mirror. An episode has no randomness of its own.
"""

import random
from functools import cache
from hashlib import sha256
from itertools import combinations_with_replacement, permutations

from flexmarl.contracts.specification.environment import Sums
from flexmarl.language.answers import answer_in, last_number
from workers.rollout.environments.base import Environment, Family
from workers.rollout.environments.questions import AnswerScore, Conversation

Numbers = tuple[int, ...]


class SumsFamily(Family[Sums]):
    Options = Sums

    def __init__(self, spec: Sums) -> None:
        super().__init__(spec)
        self.roles = tuple(seat.name for seat in spec.graph.seats())
        self.training, self.held_out = split(spec.largest, spec.terms, spec.held_out)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        sums = self.held_out if held_out else self.training
        question = Sum(sums[task_seed % len(sums)])
        return Conversation(question, self.options.graph, self.options.reply_tokens)


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


class Sum:
    """A sum as a question."""

    def __init__(self, numbers: Numbers) -> None:
        self._asked = f"What is {'+'.join(map(str, numbers))}?"
        self._sum = sum(numbers)
        self.text = f"{self._asked} Answer with only the number."

    def judge(self, reply: str) -> AnswerScore:
        return AnswerScore(float(last_number(reply) == self._sum), answer=answer_in("number", reply) or "")

    def describe(self) -> dict[str, object]:
        return {"title": self._asked, "facts": {"answer": str(self._sum)}}
