"""Planner, solver and verifier on expressions modulo m, such as `2 + 3 * 4`.

The planner writes the part to compute next, the solver answers it, until one number is left. The verifier then reads a
whole working and accepts or rejects it. Which working it reads is fixed by the task, not by the team: `corrupt_share`
of the tasks show a false one, the others a true one, so that neither always accepting nor a weak solver moves the
verifier's baseline. Where the team's own working already is what the task asks for, that is what is shown; otherwise
one result in it is falsified, or it is replaced by the true one.

Held-out expressions never occur in training: a fixed `held_out_share` of all of them, chosen by a digest of the text.
An episode has no randomness of its own, so all members of a group face the same check.
"""

import random
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from flexmarl.contracts.spec.environment import Arithmetic
from workers.rollout.environments.base import Ask, Demonstration, Environment, Outcome, Reply
from workers.rollout.environments.words import SPECIALS, numerals

Expression = tuple[str, ...]

_OPERATORS = ("+", "*")
_VERDICTS = ("accept", "reject")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a working: the reduced pair, at which position, and the claimed result."""

    position: int
    pair: tuple[str, str, str]
    result: str


class ArithmeticFamily:
    roles: tuple[str, ...] = ("planner", "solver", "verifier")

    def __init__(self, spec: Arithmetic) -> None:
        self.modulus = spec.modulus
        self.digits = numerals(spec.modulus)
        self.operands = spec.operands
        self.corrupt_share = spec.corrupt_share
        self.training, self.held_out = _split(spec.modulus, spec.operands, spec.held_out_share)

    def vocabulary(self) -> tuple[str, ...]:
        return (*SPECIALS, "plan", "solve", "check", "=", ";", *_VERDICTS, *_OPERATORS, *self.digits)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        task = random.Random(task_seed)
        expression = task.choice(self.held_out if held_out else self.training)
        false_working = task.random() < self.corrupt_share
        return _Episode(self, expression, false_working, task.randrange(self.operands - 1), task.random())

    def demonstrations(self, rng: random.Random, count: int) -> list[Demonstration]:
        """Return what a perfect team does on training expressions, one role after the other."""
        shown: list[Demonstration] = []
        while len(shown) < count:
            episode = self.make(rng.getrandbits(63), False, rng)
            assert isinstance(episode, _Episode)
            while asks := episode.asks():
                replies = [Reply(ask.role, episode.perfect_reply()) for ask in asks]
                pairs = zip(asks, replies, strict=True)
                shown += [Demonstration(a.role, a.observation, r.text, a.allowed) for a, r in pairs]
                episode.act(replies)
        return shown[:count]

    def value(self, pair: tuple[str, ...]) -> str:
        """Compute `a + b` or `a * b` modulo m."""
        left, right = int(pair[0]), int(pair[2])
        return str((left + right if pair[1] == "+" else left * right) % self.modulus)

    def working(self, expression: Expression) -> tuple[Step, ...]:
        """Return the true working that always takes the leftmost legal pair."""
        steps = []
        while len(expression) > 1:
            position = legal_positions(expression)[0]
            pair = _pair(expression, position)
            steps.append(Step(position, pair, self.value(pair)))
            expression = reduce(expression, steps[-1])
        return tuple(steps)


def legal_positions(expression: Expression) -> tuple[int, ...]:
    """Return the operands at which a pair may be computed first without changing the value."""
    operators = expression[1::2]
    return tuple(
        index
        for index, operator in enumerate(operators)
        if operator == "*" or "*" not in (*operators[max(index - 1, 0) : index], *operators[index + 1 : index + 2])
    )


def reduce(expression: Expression, step: Step) -> Expression:
    """Put the result of a step in the place of its pair."""
    start = 2 * step.position
    return (*expression[:start], step.result, *expression[start + 3 :])


def _pair(expression: Expression, position: int) -> tuple[str, str, str]:
    left, operator, right = expression[2 * position : 2 * position + 3]
    return left, operator, right


_LARGEST_TASK_SOURCE = 20_000
"""Larger expression spaces are represented by a fixed random choice of this many."""


@cache
def _split(modulus: int, operands: int, share: float) -> tuple[tuple[Expression, ...], tuple[Expression, ...]]:
    """List expressions as (training, held out), in the order of their digests."""
    size = modulus**operands * len(_OPERATORS) ** (operands - 1)
    chosen = range(size) if size <= _LARGEST_TASK_SOURCE else random.Random(0).sample(range(size), _LARGEST_TASK_SOURCE)
    expressions = (_expression(index, modulus, operands) for index in chosen)
    ranked = sorted(expressions, key=lambda words: sha256(" ".join(words).encode()).digest())
    cut = max(1, round(len(ranked) * share))
    return tuple(ranked[cut:]), tuple(ranked[:cut])


def _expression(index: int, modulus: int, operands: int) -> Expression:
    """Return the expression with a number, counting digits and operators in turn."""
    words = []
    for position in range(2 * operands - 1):
        index, choice = divmod(index, len(_OPERATORS) if position % 2 else modulus)
        words.append(_OPERATORS[choice] if position % 2 else str(choice))
    return tuple(words)


class _Episode:
    def __init__(
        self, family: ArithmeticFamily, expression: Expression, show_false: bool, spot: int, pick: float
    ) -> None:
        self._family = family
        self._expression = expression
        self._left = expression
        self._show_false = show_false
        self._spot = spot
        self._pick = pick
        self._position: int | None = None
        self._steps: list[Step] = []
        self._rewards: dict[tuple[str, int], float] = {}
        self._verdict: str | None = None

    def asks(self) -> list[Ask]:
        family = self._family
        if len(self._left) == 1:
            if self._verdict is not None:
                return []
            return [Ask("verifier", self._check(), 1, _VERDICTS)]
        if len(self._left) > 3 and self._position is None:
            return [Ask("planner", " ".join(("plan", *self._left)), 3, (*_OPERATORS, *family.digits))]
        question = _pair(self._left, self._position or 0)
        return [Ask("solver", " ".join(("solve", *question)), 1, family.digits)]

    def act(self, replies: list[Reply]) -> None:
        (reply,) = replies
        if reply.role == "planner":
            self._plan(tuple(reply.text.split()))
        elif reply.role == "solver":
            self._solve(reply.text)
        else:
            self._verdict = reply.text
            self._rewards["verifier", 0] = float(reply.text == self._right_verdict())

    def outcome(self) -> Outcome:
        by_role = {role: [r for (who, _), r in self._rewards.items() if who == role] for role in self._family.roles}
        scores = {role: sum(rewards) / len(rewards) for role, rewards in by_role.items()}
        answered = self._left[0] == self._family.working(self._expression)[-1].result
        judged = self._verdict == self._right_verdict()
        solved = answered and judged
        facts = {"answer_right": float(answered), **self._verifier_facts(judged)}
        return Outcome(scores, float(solved), solved, self._rewards, facts)

    def describe(self) -> dict[str, object]:
        answer = self._family.working(self._expression)[-1].result
        return {
            "title": f"{' '.join(self._expression)} modulo {self._family.modulus}",
            "facts": {"answer": answer, "working shown to the verifier": "false" if self._show_false else "true"},
        }

    def perfect_reply(self) -> str:
        """Return what the role that acts now should say."""
        if len(self._left) == 1:
            return self._right_verdict()
        if len(self._left) > 3 and self._position is None:
            return " ".join(_pair(self._left, legal_positions(self._left)[0]))
        return self._family.value(_pair(self._left, self._position or 0))

    def _plan(self, words: tuple[str, ...]) -> None:
        matches = [i for i in range(len(self._left) // 2) if _pair(self._left, i) == words]
        legal = legal_positions(self._left)
        right = [position for position in matches if position in legal]
        # An unreadable plan makes the solver read from left to right; the planner gets nothing for it.
        self._position = (right or matches or [0])[0]
        self._rewards["planner", len(self._expression) // 2 - len(self._left) // 2] = float(bool(right))

    def _solve(self, answer: str) -> None:
        position = self._position or 0
        pair = _pair(self._left, position)
        self._rewards["solver", len(self._steps)] = float(answer == self._family.value(pair))
        result = answer if answer in self._family.digits else self._family.digits[0]
        self._steps.append(Step(position, pair, result))
        self._left = reduce(self._left, self._steps[-1])
        self._position = None

    def _right_verdict(self) -> str:
        return "reject" if self._show_false else "accept"

    def _check(self) -> str:
        lines = [f"{' '.join(step.pair)} = {step.result}" for step in self._shown()]
        return " ; ".join([f"check {' '.join(self._expression)}", *lines])

    def _shown(self) -> tuple[Step, ...]:
        true_one = all(reward == 1.0 for reward in self._rewards.values())
        if not self._show_false:
            return tuple(self._steps) if true_one else self._family.working(self._expression)
        return self._falsified() if true_one else tuple(self._steps)

    def _falsified(self) -> tuple[Step, ...]:
        step = self._steps[self._spot]
        wrong = [digit for digit in self._family.digits if digit != step.result]
        false_step = Step(step.position, step.pair, wrong[int(self._pick * len(wrong))])
        return (*self._steps[: self._spot], false_step, *self._steps[self._spot + 1 :])

    def _verifier_facts(self, judged: bool) -> dict[str, float]:
        """Return the verdict's part of balanced accuracy: each of the two cases weighs one half, whatever its share."""
        share = self._family.corrupt_share if self._show_false else 1.0 - self._family.corrupt_share
        if share in (0.0, 1.0):
            return {"verdict_right": float(judged)}
        return {"verdict_right": float(judged), "balanced_accuracy": float(judged) * 0.5 / share}
