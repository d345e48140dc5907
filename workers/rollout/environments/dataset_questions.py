"""Rows of an imported dataset as questions: asked in their own messages, scored by the rules of the specification.

Scores that judges give are asked for when the team has ended: each answer that they pay for is graded once by each
judge, in a turn of its own that knows of nothing else.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flexmarl.algorithms.scores import RowScorer, ScorePart
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.scores import JudgeOptions
from flexmarl.language.answers import Form, answer_in
from flexmarl.language.dataset_rows import DatasetRow, from_line
from flexmarl.language.messages import Message
from workers.rollout.environments.base import Ask, Environment, JudgedAnswer, Outcome, Reply, RewardMissing
from workers.rollout.environments.graphs import Statement
from workers.rollout.environments.questions import AnswerScore, Conversation
from workers.rollout.environments.rows import EPOCH, RowFamily
from workers.rollout.environments.verdicts import MOST_VERDICT, question_of, value_of
from workers.scoring.apart import ApartScorer
from workers.scoring.errors import ScoringFailed

NOT_SCORED = "not_scored"
"""The reply's score raised; the row's part of it is 0."""


class DatasetFamily(RowFamily[DatasetTasks]):
    Options = DatasetTasks

    def __init__(self, spec: DatasetTasks) -> None:
        super().__init__(spec, spec.scores)

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        line, epoch = self.line_of(task_seed, held_out)
        return RowConversation(RowQuestion(line, self.scorer, self.apart, epoch, self.options.answer), self.options)


class RowQuestion:
    """A row: its last message is what is asked."""

    def __init__(
        self, line: bytes, scorer: RowScorer, apart: ApartScorer, epoch: int | None = None, form: Form = "whole"
    ) -> None:
        self.row: DatasetRow = from_line(line)
        self.epoch = epoch
        self._form = form
        self.text = self.row.messages[-1].content
        self.scorer = scorer
        self._apart = apart
        self._known: dict[str, dict[str, ScorePart]] = {}
        """By reply: what is known of it."""

    def judge(self, reply: str) -> AnswerScore:
        parts = self.parts(reply)
        broken = any(part.broken for part in parts.values())
        return AnswerScore(self.scorer.worth(parts), NOT_SCORED if broken else "", answer_in(self._form, reply) or "")

    def parts(self, reply: str) -> dict[str, ScorePart]:
        """Return what is known of a reply."""
        if reply not in self._known:
            self._known[reply] = self.scorer.parts(self.row, reply)
        return self._known[reply]

    async def score_apart(self, reply: str) -> None:
        """Have a reply scored by what is computed apart. Raises RewardMissing."""
        known = self.parts(reply)
        if not known.keys() >= set(self._apart.names):
            try:
                known |= await self._apart.parts(self.row, reply)
            except ScoringFailed as failed:
                raise RewardMissing(str(failed)) from failed

    def note(self, reply: str, name: str, part: ScorePart) -> None:
        """Take in what somebody says of a reply."""
        self.parts(reply)[name] = part

    def missing(self, reply: str) -> list[str]:
        """Return the scores that have said nothing of a reply yet."""
        return [one.label for one in self.scorer.options if one.label not in self.parts(reply)]

    def describe(self) -> dict[str, object]:
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        facts = {"question": self.row.prompt, "answer": self.row.answer}
        return {"title": (lines or [""])[-1][:120], "facts": facts}


@dataclass(frozen=True, slots=True)
class _Grading:
    """An answer that a judge is to grade."""

    judge: JudgeOptions
    answer: str


class RowConversation(Conversation):
    """The conversation about a row: each seat first reads what the row says before its question; judges come last."""

    def __init__(self, question: RowQuestion, options: DatasetTasks) -> None:
        super().__init__(question, options.graph, options.reply_tokens, (NOT_SCORED,))
        self._row = question
        self._judges = options.judges()
        self._tried: Counter[tuple[str, str]] = Counter()
        """Of a score and an answer, how often no verdict came."""
        self._verdict_tokens: Counter[str] = Counter()

    def asks(self) -> list[Ask]:
        before, spoke = self._row.row.messages[:-1], {one.seat for one in self._said}
        asks = [
            ask if ask.role in spoke else replace(ask, messages=behind(before, ask.messages)) for ask in super().asks()
        ]
        return asks or [self._grade(one) for one in self._gradings()]

    def _grade(self, one: _Grading) -> Ask:
        asked = (question_of(one.judge, self._row.row, one.answer),)
        return Ask(one.judge.agent, "", one.judge.verdict_tokens, messages=asked, fresh=True)

    def act(self, replies: list[Reply]) -> None:
        if self._next()[0]:
            super().act(replies)
            return
        for one, reply in zip(self._gradings(), replies, strict=True):
            self._take_verdict(one, reply)
        self._score_again()

    def _take_verdict(self, one: _Grading, reply: Reply) -> None:
        """Read a verdict. Raises RewardMissing when no try gave one."""
        label, value = one.judge.label, value_of(one.judge, reply.text)
        self._verdict_tokens[label] += reply.tokens
        if value is not None:
            self._row.note(one.answer, label, ScorePart(value, reply.text.strip()[:MOST_VERDICT]))
            return
        self._tried[label, one.answer] += 1
        if self._tried[label, one.answer] >= one.judge.tries:
            bounds = f"{one.judge.lowest:g} to {one.judge.highest:g}"
            said = " ".join(reply.text.split())[:200]
            raise RewardMissing(f"{label}: no number from {bounds} in {one.judge.tries} verdicts; the last: {said!r}")

    def _gradings(self) -> list[_Grading]:
        """Return what is to be graded now: one answer for each agent, since it has one conversation at a time."""
        found: dict[str, _Grading] = {}
        for judge in self._judges:
            for one in self._graded(judge):
                if judge.agent not in found and judge.label in self._row.missing(one.text):
                    found[judge.agent] = _Grading(judge, one.text)
        return list(found.values())

    def _graded(self, judge: JudgeOptions) -> Iterator[Statement]:
        """Return the answers that a judge's score pays for."""
        decided = self._graph.decided(self._said)
        if decided is not None and judge.counts_for(None):
            yield decided
        for one in self._said:
            if one.act == "answer" and self._seats[one.seat].reward == "own" and judge.counts_for(one.seat):
                yield one

    async def score(self, replies: list[Reply]) -> None:
        """Have answers among replies scored by what is computed apart. Raises RewardMissing."""
        parts = self._next()[0]
        said = zip(parts, replies, strict=False)
        answers = {reply.text: None for part, reply in said if self._graph.act_of(part, reply.text) == "answer"}
        await asyncio.gather(*(self._row.score_apart(answer) for answer in answers))

    def _own_score(self, seat: str, answer: str, score: float) -> float | None:
        scorer = self._row.scorer
        return scorer.worth(self._row.parts(answer), seat) if scorer.pays(seat) else None

    def outcome(self) -> Outcome:
        outcome = super().outcome()
        facts = dict(outcome.facts)
        if (decided := self._graph.decided(self._said)) is not None:
            known = self._row.parts(decided.text)
            needed = [one.label for one in self._row.scorer.options if one.counts_for(None)]
            if absent := [name for name in needed if name not in known]:
                raise RewardMissing(f"{absent[0]}: it was not computed")
            facts |= {name: part.value for name, part in known.items()}
        facts |= {f"{name}_tokens": float(tokens) for name, tokens in self._verdict_tokens.items()}
        if self._row.epoch is not None:
            facts[EPOCH] = float(self._row.epoch)
        return replace(outcome, facts=facts, judged=self._judged())

    def _judged(self) -> tuple[JudgedAnswer, ...]:
        turns: Counter[str] = Counter()
        found = []
        for one in self._said:
            if one.act == "answer":
                known = self._row.parts(one.text)
                why = {name: part.why for name, part in known.items() if part.why}
                values = {name: part.value for name, part in known.items()}
                found.append(JudgedAnswer(one.seat, turns[one.seat], values, why))
            turns[one.seat] += 1
        return tuple(found)


def behind(before: Sequence[Message], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages with those of a row before them; two system messages become one, since templates take one."""
    if before and before[0].role == "system" and messages[0].role == "system":
        system = Message("system", f"{before[0].content}\n\n{messages[0].content}")
        return (system, *before[1:], *messages[1:])
    if messages[0].role == "system":
        return (messages[0], *before, *messages[1:])
    return (*before, *messages)
