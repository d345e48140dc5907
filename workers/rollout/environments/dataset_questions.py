"""Rows of an imported dataset as questions: asked in their own messages, scored by the rules of the specification."""

import random
from collections.abc import Sequence
from dataclasses import replace

from flexmarl.algorithms.scores import RowScorer
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.graphs import GraphOptions
from flexmarl.language.dataset_rows import DatasetRow, epoch_of, from_line, row_of
from flexmarl.language.messages import Message
from workers.rollout.datasets import DatasetLines, DatasetMissing
from workers.rollout.environments.base import Ask, Environment, Family, Outcome
from workers.rollout.environments.questions import AnswerScore, Conversation

EPOCH = "epoch"
"""Fact: passes through the training rows before this one."""
NOT_SCORED = "not_scored"
"""The reply's score raised; the row's part of it is 0."""


class DatasetFamily(Family[DatasetTasks]):
    Options = DatasetTasks

    def __init__(self, spec: DatasetTasks) -> None:
        super().__init__(spec)
        self.roles = tuple(seat.name for seat in spec.graph.seats())
        self.scorer = RowScorer(spec.scores)
        self.lines: DatasetLines | None = None
        """Set by whoever plays; the roles are known without."""

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        if self.lines is None:
            raise DatasetMissing(f"the rows of {self.options.dataset.name} were not read")
        if held_out:
            question = RowQuestion(self.lines.held_out[task_seed % len(self.lines.held_out)], self.scorer)
        else:
            rows = len(self.lines.training)
            line = self.lines.training[row_of(task_seed, rows, self.options.seed)]
            question = RowQuestion(line, self.scorer, epoch_of(task_seed, rows))
        return RowConversation(question, self.options.graph, self.options.reply_tokens)


class RowQuestion:
    """A row: its last message is what is asked."""

    def __init__(self, line: bytes, scorer: RowScorer, epoch: int | None = None) -> None:
        self.row: DatasetRow = from_line(line)
        self.epoch = epoch
        self.text = self.row.messages[-1].content
        self._scorer = scorer

    def judge(self, reply: str) -> AnswerScore:
        judged = self._scorer.judge(self.row, reply)
        return AnswerScore(judged.score, NOT_SCORED if judged.broken else "", reply.strip())

    def parts(self, reply: str) -> dict[str, float]:
        """Return what each score says of a reply."""
        return self._scorer.judge(self.row, reply).parts

    def describe(self) -> dict[str, object]:
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        facts = {"question": self.row.prompt, "answer": self.row.answer}
        return {"title": (lines or [""])[-1][:120], "facts": facts}


class RowConversation(Conversation):
    """The conversation about a row: each seat first reads what the row says before its question."""

    def __init__(self, question: RowQuestion, graph: GraphOptions, reply_tokens: int) -> None:
        super().__init__(question, graph, reply_tokens, (NOT_SCORED,))
        self._row = question

    def asks(self) -> list[Ask]:
        before, spoke = self._row.row.messages[:-1], {one.seat for one in self._said}
        return [
            ask if ask.role in spoke else replace(ask, messages=behind(before, ask.messages)) for ask in super().asks()
        ]

    def outcome(self) -> Outcome:
        outcome = super().outcome()
        facts = dict(outcome.facts)
        if (decided := self._graph.decided(self._said)) is not None:
            facts |= self._row.parts(decided.text)
        if self._row.epoch is not None:
            facts[EPOCH] = float(self._row.epoch)
        return replace(outcome, facts=facts)


def behind(before: Sequence[Message], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages with those of a row before them; two system messages become one, since templates take one."""
    if before and before[0].role == "system" and messages[0].role == "system":
        system = Message("system", f"{before[0].content}\n\n{messages[0].content}")
        return (system, *before[1:], *messages[1:])
    if messages[0].role == "system":
        return (messages[0], *before, *messages[1:])
    return (*before, *messages)
