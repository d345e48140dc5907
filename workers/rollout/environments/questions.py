"""A question that a team answers in messages: a solver, and perhaps a reviser who reads its reply and answers again.

Each agent is paid for its own answer; the team's score is that of the last one. A conversation has no randomness.
"""

from dataclasses import dataclass
from typing import Protocol

from flexmarl.language.messages import Message
from workers.rollout.environments.base import Ask, Outcome, Reply

SOLVER, REVISER = "solver", "reviser"


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """What a reply is worth, from 0 to 1."""

    score: float
    reason: str = ""
    """Why there was no answer to score; then the score is 0."""


class ScoredQuestion(Protocol):
    """A task in words, and how replies to it are judged."""

    text: str
    """The task, with the form of the answer."""

    def judge(self, reply: str) -> AnswerScore:
        """Judge a reply, whatever it is."""

    def describe(self) -> dict[str, object]:
        """Return the task for people, as `Environment.describe` does."""


class Conversation:
    """An episode about one question: in each round, each role is asked once, in order, and reads the answer before its.

    `reasons` are those for which a reply may have no answer.
    """

    def __init__(
        self,
        question: ScoredQuestion,
        roles: tuple[str, ...],
        reply_tokens: int,
        reasons: tuple[str, ...] = (),
        rounds: int = 1,
    ) -> None:
        self._question = question
        self._roles = roles
        self._reply_tokens = reply_tokens
        self._reasons = reasons
        self._turns = rounds * len(roles)
        self._said: list[str] = []
        self._judged: list[AnswerScore] = []

    def asks(self) -> list[Ask]:
        turn = len(self._said)
        if turn == self._turns:
            return []
        role = self._roles[turn % len(self._roles)]
        return [Ask(role, "", self._reply_tokens, messages=self._messages(turn, role))]

    def _messages(self, turn: int, role: str) -> tuple[Message, ...]:
        heard = f"A colleague said: {self._said[-1].strip() or 'nothing'}" if self._said else ""
        if turn >= len(self._roles):
            return (Message("user", f"{heard}. Answer again in the same form."),)
        user = Message("user", f"{self._question.text} {heard}".strip())
        if len(self._roles) == 1:
            return (user,)
        return (Message("system", f"You are the {role} of a team of two."), user)

    def act(self, replies: list[Reply]) -> None:
        (reply,) = replies
        self._said.append(reply.text)
        self._judged.append(self._question.judge(reply.text))

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        """Return what each answer so far is worth."""
        roles = self._roles
        return {
            (roles[turn % len(roles)], turn // len(roles)): judged.score for turn, judged in enumerate(self._judged)
        }

    def outcome(self) -> Outcome:
        failed = [judged.reason for judged in self._judged]
        # Of each reason the share of replies, also where it is 0, so that its mean over episodes is the share of all.
        facts = {reason: failed.count(reason) / len(failed) for reason in self._reasons}
        last = [judged.score for judged in self._judged[-len(self._roles) :]]
        if len(last) > 1:
            facts["revised"] = last[-1] - last[0]
        by_role = dict(zip(self._roles, last, strict=True))
        return Outcome(by_role, last[-1], last[-1] >= 1.0, self.turn_rewards(), facts)

    def describe(self) -> dict[str, object]:
        return self._question.describe()
