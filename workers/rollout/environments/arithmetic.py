"""Planner, solver and verifier on expressions modulo m, such as `2 + 3 * 4`.

The planner writes the part to compute next, the solver answers it, the verifier accepts or rejects the line, until one
number is left. Whether a line is shown true or false is fixed by the task, not by the team: `corrupt_share` of the
lines are false, so that neither always accepting nor a weak solver moves the verifier's baseline. Where the solver's
own answer already is what the task asks for, it is shown; otherwise it is replaced. The team goes on with the solver's
answer, whatever was shown.

Held-out expressions never occur in training: a fixed `held_out_share` of all of them, chosen by a digest of the text.
An episode has no randomness of its own, so all members of a group face the same checks.
"""

import random
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from flexmarl.contracts.specification.environment import Arithmetic
from workers.rollout.environments.base import Ask, Demonstration, Environment, Family, Outcome, Reply
from workers.rollout.environments.words import SPECIALS, numerals

Expression = tuple[str, ...]

_OPERATORS = ("+", "*")
_VERDICTS = ("accept", "reject")


@dataclass(frozen=True, slots=True)
class VerifierCheck:
    """What the verifier is shown of one line."""

    false: bool
    pick: float
    """Which wrong result, from 0 to below 1, where one has to be put in."""


class ArithmeticFamily(Family[Arithmetic]):
    Options = Arithmetic

    roles: tuple[str, ...] = ("planner", "solver", "verifier")

    def __init__(self, spec: Arithmetic) -> None:
        super().__init__(spec)
        self.modulus = spec.modulus
        self.digits = numerals(spec.modulus)
        self.operands = spec.operands
        self.corrupt_share = spec.corrupt_share
        self.training, self.held_out = _split(spec.modulus, spec.operands, spec.held_out_share)

    def vocabulary(self) -> tuple[str, ...]:
        return (*SPECIALS, "plan", "solve", "check", "=", *_VERDICTS, *_OPERATORS, *self.digits)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        task = random.Random(task_seed)
        expression = task.choice(self.held_out if held_out else self.training)
        checks = tuple(
            VerifierCheck(task.random() < self.corrupt_share, task.random()) for _ in range(self.operands - 1)
        )
        return _Episode(self, expression, checks)

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

    def evaluate(self, expression: Expression) -> str:
        """Compute the value of a whole expression."""
        while len(expression) > 1:
            position = legal_positions(expression)[0]
            expression = reduce(expression, position, self.value(_pair(expression, position)))
        return expression[0]


def legal_positions(expression: Expression) -> tuple[int, ...]:
    """Return the operands at which a pair may be computed first without changing the value."""
    operators = expression[1::2]
    return tuple(
        index
        for index, operator in enumerate(operators)
        if operator == "*" or "*" not in (*operators[max(index - 1, 0) : index], *operators[index + 1 : index + 2])
    )


def reduce(expression: Expression, position: int, result: str) -> Expression:
    """Put a result in the place of its pair."""
    start = 2 * position
    return (*expression[:start], result, *expression[start + 3 :])


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
    def __init__(self, family: ArithmeticFamily, expression: Expression, checks: tuple[VerifierCheck, ...]) -> None:
        self._family = family
        self._expression = expression
        self._checks = checks
        self._left = expression
        self._position: int | None = None
        self._answer: str | None = None
        """What the solver said to the pair at `_position`; the verifier acts next."""
        self._rewards: dict[str, list[float]] = {role: [] for role in family.roles}

    def asks(self) -> list[Ask]:
        family = self._family
        if len(self._left) == 1:
            return []
        if len(self._left) > 3 and self._position is None:
            return [Ask("planner", " ".join(("plan", *self._left)), 3, (*_OPERATORS, *family.digits))]
        question = " ".join(self._question())
        if self._answer is None:
            return [Ask("solver", f"solve {question}", 1, family.digits)]
        return [Ask("verifier", f"check {question} = {self._shown()}", 1, _VERDICTS)]

    def act(self, replies: list[Reply]) -> None:
        (reply,) = replies
        if reply.role == "planner":
            self._plan(tuple(reply.text.split()))
        elif reply.role == "solver":
            self._answer = reply.text if reply.text in self._family.digits else self._family.digits[0]
            self._rewards["solver"].append(float(reply.text == self._family.value(self._question())))
        else:
            self._judge(reply.text)

    def outcome(self) -> Outcome:
        scores = {role: sum(rewards) / len(rewards) for role, rewards in self._rewards.items()}
        answered = self._left[0] == self._family.evaluate(self._expression)
        solved = answered and scores["verifier"] == 1.0
        facts = {"answer_right": float(answered), "verdict_right": scores["verifier"], **self._balanced_accuracy()}
        return Outcome(scores, float(solved), solved, self.turn_rewards(), facts)

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        """Return whether each turn was right, so far."""
        return {(role, turn): r for role, rewards in self._rewards.items() for turn, r in enumerate(rewards)}

    def describe(self) -> dict[str, object]:
        lines = ", ".join("false" if check.false else "true" for check in self._checks)
        return {
            "title": f"{' '.join(self._expression)} modulo {self._family.modulus}",
            "facts": {"answer": self._family.evaluate(self._expression), "lines shown to the verifier": lines},
        }

    def perfect_reply(self) -> str:
        """Return what the role that acts now should say."""
        if len(self._left) > 3 and self._position is None:
            return " ".join(_pair(self._left, legal_positions(self._left)[0]))
        return self._family.value(self._question()) if self._answer is None else self._right_verdict()

    def _question(self) -> tuple[str, str, str]:
        return _pair(self._left, self._position or 0)

    def _plan(self, words: Expression) -> None:
        matches = [i for i in range(len(self._left) // 2) if _pair(self._left, i) == words]
        legal = legal_positions(self._left)
        right = [position for position in matches if position in legal]
        # An unreadable plan makes the solver read from left to right; the planner gets nothing for it.
        self._position = (right or matches or [0])[0]
        self._rewards["planner"].append(float(bool(right)))

    def _judge(self, verdict: str) -> None:
        assert self._answer is not None
        self._rewards["verifier"].append(float(verdict == self._right_verdict()))
        self._left = reduce(self._left, self._position or 0, self._answer)
        self._position = self._answer = None

    def _check(self) -> VerifierCheck:
        return self._checks[len(self._rewards["verifier"])]

    def _right_verdict(self) -> str:
        return "reject" if self._check().false else "accept"

    def _shown(self) -> str:
        truth, check = self._family.value(self._question()), self._check()
        if not check.false:
            return truth
        if self._answer is not None and self._answer != truth:
            return self._answer
        wrong = [digit for digit in self._family.digits if digit != truth]
        return wrong[int(check.pick * len(wrong))]

    def _balanced_accuracy(self) -> dict[str, float]:
        """Return this episode's part of it: true and false lines weigh one half each, whatever their shares."""
        share = self._family.corrupt_share
        if share in (0.0, 1.0):
            return {}
        parts = [
            right * 0.5 / (share if check.false else 1.0 - share)
            for right, check in zip(self._rewards["verifier"], self._checks, strict=True)
        ]
        return {"balanced_accuracy": sum(parts) / len(parts)}
