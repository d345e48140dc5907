"""Questions of the package reasoning-gym, asked in messages and scored by the generator that made them."""

import random
from functools import cached_property

from flexmarl.contracts.specification.reasoning_gym import ReasoningGym
from flexmarl.language.answers import Form, answer_in
from workers.rollout.environments.base import Environment, Family
from workers.rollout.environments.generators import GeneratorRows, Row
from workers.rollout.environments.questions import AnswerScore, Conversation

NO_ANSWER = "no_answer"
"""The reply has no answer in the wanted form."""
NOT_SCORED = "not_scored"
"""The generator raised when it scored the answer."""

FORMS = {
    "whole": "Answer with only the answer.",
    "number": "Answer with only the number.",
    "tag": "Write the answer between <answer> and </answer>.",
}
"""How the form of an answer is told."""


class ReasoningGymFamily(Family[ReasoningGym]):
    Options = ReasoningGym

    modules = ("reasoning_gym",)

    def __init__(self, spec: ReasoningGym) -> None:
        super().__init__(spec)
        self.roles = tuple(seat.name for seat in spec.graph.seats())

    @cached_property
    def rows(self) -> GeneratorRows:
        """Made where it is played: whoever only needs the roles has no use for the package."""
        return GeneratorRows(self.options)

    def prepare(self) -> None:
        super().prepare()
        _ = self.rows.held_out

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        kept = self.rows.held_out
        row = kept[task_seed % len(kept)] if held_out else self.rows.training(task_seed % self.options.training)
        question = GymQuestion(self.rows, row, self.options.answer)
        return Conversation(question, self.options.graph, self.options.reply_tokens, (NO_ANSWER, NOT_SCORED))


class GymQuestion:
    """A row of a data set as a question."""

    def __init__(self, rows: GeneratorRows, row: Row, form: Form) -> None:
        self._rows = rows
        self._row = row
        self._form = form
        self.text = f"{row['question']}\n\n{FORMS[form]}"

    def judge(self, reply: str) -> AnswerScore:
        answer = answer_in(self._form, reply)
        if answer is None:
            return AnswerScore(0.0, NO_ANSWER)
        try:
            return AnswerScore(self._rows.score(self._row, answer), answer=answer)
        except Exception:  # foreign code reads what a model wrote: whatever that does to it is no answer
            return AnswerScore(0.0, NOT_SCORED)

    def describe(self) -> dict[str, object]:
        question = self._row["question"]
        lines = [line.strip() for line in question.splitlines() if line.strip()]
        facts = {"question": question, "answer": str(self._row["answer"])}
        return {"title": (lines or [""])[-1][:120], "facts": facts}
