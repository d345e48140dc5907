"""A question that a team answers in messages, in the order of its graph.

The team's score is that of its answer. A seat has the score of its own last answer, or of its last verdict, which is
worth what it says of the answer; one that gives neither has the team's. A conversation has no randomness.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flexmarl.contracts.specification.graphs import GraphOptions, SeatOptions
from flexmarl.language.messages import Message
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.environments.graphs import Act, Graph, Part, Statement, graph_of, verdict


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """What a reply is worth, from 0 to 1."""

    score: float
    reason: str = ""
    """Why there was no answer to score; then the score is 0."""
    answer: str = ""
    """What was read as the answer, so that equal answers can be counted; empty where there was none."""


class ScoredQuestion(Protocol):
    """A task in words, and how replies to it are judged."""

    @property
    def text(self) -> str:
        """Return the task, with the form of the answer."""

    def judge(self, reply: str) -> AnswerScore:
        """Judge a reply, whatever it is."""

    def describe(self) -> dict[str, object]:
        """Return the task for people, as `Environment.describe` does."""


class Conversation:
    """An episode about one question.

    `reasons` are those for which a reply may have no answer, `notes` what only one seat is told, by seat.
    """

    def __init__(
        self,
        question: ScoredQuestion,
        options: GraphOptions,
        reply_tokens: int,
        reasons: tuple[str, ...] = (),
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self._question = question
        self._graph: Graph[Any] = graph_of(options)
        self._seats = {seat.name: seat for seat in options.seats()}
        self._reply_tokens = reply_tokens
        self._tokens_left = options.tokens
        self._reasons = reasons
        self._notes = notes or {}
        self._said: tuple[Statement, ...] = ()
        self._failed: tuple[str, ...] = ()
        """Of each answer, why it has none; empty where it has one."""

    def asks(self) -> list[Ask]:
        parts, most = self._next()
        return [Ask(part.seat, "", most, messages=self._messages(part)) for part in parts]

    def _next(self) -> tuple[tuple[Part, ...], int]:
        """Return the turns to be taken, and the most tokens of each."""
        parts, most = self._graph.next(self._said), self._reply_tokens
        if self._tokens_left is not None and parts:
            most = min(most, self._tokens_left // len(parts))
        return (parts, most) if most > 0 else ((), 0)

    def _messages(self, part: Part) -> tuple[Message, ...]:
        own = [one for one in self._said if one.seat == part.seat]
        heard = self._heard(self._seats[part.seat], own)
        asked = part.question or ("" if own else self._question.text)
        task = _task(part.act, [one.act for one in own], [name for name in self._seats if name != part.seat])
        if len(self._seats) == 2:
            heard = f"{heard}." if heard and own else heard
        note = "" if own else self._notes.get(part.seat, "")
        between = " " if len(self._seats) == 2 else "\n\n"
        user = Message("user", between.join(text for text in (note, asked, heard, task) if text))
        if own or len(self._seats) == 1:
            return (user,)
        return (Message("system", f"You are the {part.seat} of a team of {_number(len(self._seats))}."), user)

    def _heard(self, seat: SeatOptions, own: Sequence[Statement]) -> str:
        """Return what a seat is told that others said: since its last turn, or right before."""
        since = own[-1].stage if own else 0
        if seat.sees == "last" and self._said:
            since = self._said[-1].stage
        # Who spoke at once with a seat is heard at its next turn.
        others = [one for one in self._said if one.stage >= since and one.seat != seat.name and _allowed(seat, one)]
        if len(self._seats) == 2:
            return f"A colleague said: {others[-1].text.strip() or 'nothing'}" if others else ""
        return "\n\n".join(f"The {one.seat} said: {one.text.strip() or 'nothing'}" for one in others)

    def act(self, replies: list[Reply]) -> None:
        parts, stage = self._next()[0], self._said[-1].stage + 1 if self._said else 0
        before = self._graph.decided(self._said)
        for part, reply in zip(parts, replies, strict=True):
            act = self._graph.act_of(part, reply.text)
            self._said += (self._statement(part.seat, stage, act, reply.text, before),)
            if self._tokens_left is not None:
                self._tokens_left -= reply.tokens

    def _statement(self, seat: str, stage: int, act: Act, text: str, before: Statement | None) -> Statement:
        """Return a turn with what it is worth; a verdict is worth what it says of the answer before."""
        if act == "answer":
            judged = self._question.judge(text)
            self._failed += (judged.reason,)
            own = self._own_score(seat, text, judged.score)
            return Statement(seat, stage, act, text, judged.answer, judged.score, own)
        if act != "verify":
            return Statement(seat, stage, act, text)
        accepts, score = verdict(text), before.score or 0.0 if before else 0.0
        worth = 0.0 if accepts is None else score if accepts else 1.0 - score
        return Statement(seat, stage, act, text, score=worth, own=worth)

    def _own_score(self, seat: str, answer: str, score: float) -> float | None:
        """Return what an answer that is worth so much is worth to its seat; None: it is paid with the team."""
        return score

    def _score_again(self) -> None:
        """Score all that was said once more, with what has become known of the answers."""
        said, self._said, self._failed = self._said, (), ()
        for stage in range(said[-1].stage + 1 if said else 0):
            before = self._graph.decided(self._said)
            for one in said:
                if one.stage == stage:
                    self._said += (self._statement(one.seat, stage, one.act, one.text, before),)

    def turn_rewards(self) -> dict[tuple[str, int], float]:
        """Return what each answer and each verdict so far is worth; in the end, the last turn of the others as well."""
        found: dict[tuple[str, int], float] = {}
        turns: Counter[str] = Counter()
        for one in self._said:
            if one.own is not None and self._seats[one.seat].reward == "own":
                found[one.seat, turns[one.seat]] = one.own
            turns[one.seat] += 1
        if not self._next()[0]:
            paid = {seat for seat, _ in found}
            found |= {(seat, last - 1): self._team_score() for seat, last in turns.items() if seat not in paid}
        return found

    def _team_score(self) -> float:
        decided = self._graph.decided(self._said)
        return decided.score or 0.0 if decided else 0.0

    def outcome(self) -> Outcome:
        team_score = self._team_score()
        own = {one.seat: one.own for one in self._said if one.own is not None and self._seats[one.seat].reward == "own"}
        scores = dict.fromkeys(self._seats, team_score) | own
        decided = self._graph.decided(self._said)
        answer = decided.answer if decided else ""
        solved, rewards = team_score >= 1.0, self.turn_rewards()
        return Outcome(scores, team_score, solved, rewards, self._facts(team_score), answer=answer)

    def _facts(self, team_score: float) -> dict[str, float]:
        # Of each reason the share of answers, also where it is 0, so that its mean over episodes is the share of all.
        facts = {reason: self._failed.count(reason) / max(len(self._failed), 1) for reason in self._reasons}
        answers = [one.score or 0.0 for one in self._said if one.act == "answer"]
        if len(answers) > 1:
            facts["revised"] = team_score - answers[0]
        verdicts = [one.score or 0.0 for one in self._said if one.act == "verify"]
        if verdicts:
            facts["verdict_right"] = sum(verdicts) / len(verdicts)
        return facts

    def describe(self) -> dict[str, object]:
        return self._question.describe()


def _allowed(seat: SeatOptions, said: Statement) -> bool:
    return seat.sees != "own" if isinstance(seat.sees, str) else said.seat in seat.sees


def _task(act: Act, before: Sequence[Act], others: Sequence[str]) -> str:
    """Return what a seat is told to do beside its question, when it has taken some turns before."""
    names = ", ".join(others)
    match act:
        case "answer" if before:
            return "Answer again in the same form." if "answer" in before else "Answer now."
        case "plan":
            return f"Do not answer: say {'again ' if before else ''}how to find the answer."
        case "verify":
            return "Is the answer right? End with accept or reject."
        case "ask" if before:
            return "Ask again, or answer."
        case "ask":
            return f"Ask {names} by a line `ask NAME: question` for each, or answer at once."
        case "call":
            return f"Who speaks next? End with a line `next: NAME`, with one of {names}, or with `end`."
    return ""


def _number(count: int) -> str:
    words = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[count - 2] if count < 10 else str(count)
