"""Questions about synthetic shops, whose answers are checked by rule.

Each shop has three tables, and each of three seats knows one of them; a question needs figures of one table or of two.
A shop is made from the task's seed alone. A digest of shop and question puts it on one side of the split, so no
held-out question is trained on.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from flexmarl.contracts.specification.shop import TABLES, Shop
from flexmarl.language.answers import answer_in, last_number
from workers.rollout.environments.base import Environment, Family
from workers.rollout.environments.questions import AnswerScore, Conversation

GOODS = ("mugs", "lamps", "chairs", "books", "caps", "bags", "pens", "clocks", "scarves", "kettles", "rugs", "plants")
FIGURES = {
    "analysis": "orders", "marketing": "coupons used", "after_sales": "returns",
    "orders": "ordered", "pricing": "price", "stock": "in stock",
}  # fmt: skip
"""What a table counts."""
_HELD_OUT = 8
"""Of so many shops with questions one is held out."""


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of question."""

    text: str
    needs: tuple[str, ...]
    """The tables, in the order in which `answer` takes their figures."""
    answer: Callable[..., int]


def _same(figure: int) -> int:
    return figure


FORMS: dict[str, tuple[Form, ...]] = {
    "merchant": (
        Form("How many orders of {} were there?", ("analysis",), _same),
        Form("How many coupons were used for {}?", ("marketing",), _same),
        Form("How many {} were returned?", ("after_sales",), _same),
        Form("How many orders of {} were not returned?", ("analysis", "after_sales"), int.__sub__),
        Form("How many orders of {} came without a coupon?", ("analysis", "marketing"), int.__sub__),
    ),
    "category": (
        Form("How many {} are ordered?", ("orders",), _same),
        Form("What is the price of {} each?", ("pricing",), _same),
        Form("How many {} are in stock?", ("stock",), _same),
        Form("What do all orders of {} cost together?", ("orders", "pricing"), int.__mul__),
        Form("How many {} are left when all orders are sent?", ("stock", "orders"), int.__sub__),
        Form("What is the stock of {} worth?", ("stock", "pricing"), int.__mul__),
    ),
}
_WHOLE = {"merchant": "analysis", "category": "stock"}
"""The table whose figures are the largest, so that no answer is below 0."""


class ShopFamily(Family[Shop]):
    Options = Shop

    def __init__(self, spec: Shop) -> None:
        super().__init__(spec)
        self.roles = tuple(seat.name for seat in spec.graph.seats())

    def make(self, task_seed: int, held_out: bool, rng: random.Random) -> Environment:
        question = drawn(self.options, task_seed % self.options.held_out if held_out else task_seed, held_out)
        return Conversation(question, self.options.graph, self.options.reply_tokens, notes=question.notes())


def drawn(options: Shop, number: int, held_out: bool) -> "ShopQuestion":
    """Return a question of one side of the split by its number: the first that falls there."""
    chance = random.Random(f"{'held out' if held_out else 'training'} {number}")
    while True:
        question = ShopQuestion.made(options, chance)
        if question.held_out == held_out:
            return question


@dataclass(frozen=True, slots=True)
class ShopQuestion:
    """A question about a shop."""

    tables: Mapping[str, Mapping[str, int]]
    """Figures by table and good."""
    good: str
    form: Form

    @classmethod
    def made(cls, options: Shop, chance: random.Random) -> "ShopQuestion":
        """Draw a shop and a question about it."""
        goods, names = chance.sample(GOODS, options.goods), TABLES[options.assistant]
        whole = {good: chance.randint(1, options.largest) for good in goods}
        tables = {name: {good: chance.randint(1, whole[good]) for good in goods} for name in names}
        tables[_WHOLE[options.assistant]] = whole
        forms = [form for form in FORMS[options.assistant] if len(form.needs) <= options.figures]
        return cls(tables, chance.choice(goods), chance.choice(forms))

    @property
    def text(self) -> str:
        return f"{self.form.text.format(self.good)} Answer with only the number."

    @property
    def answer(self) -> int:
        """The right one."""
        return self.form.answer(*(self.tables[name][self.good] for name in self.form.needs))

    @property
    def held_out(self) -> bool:
        """Whether it is kept for evaluation."""
        whole = repr((sorted((name, sorted(rows.items())) for name, rows in self.tables.items()), self.text))
        return sha256(whole.encode()).digest()[0] % _HELD_OUT == 0

    def notes(self) -> dict[str, str]:
        """Return what each seat knows."""
        return {name: f"You know of each good, {FIGURES[name]}: {_rows(rows)}." for name, rows in self.tables.items()}

    def judge(self, reply: str) -> AnswerScore:
        """Judge the last number of a reply."""
        return AnswerScore(float(last_number(reply) == self.answer), answer=answer_in("number", reply) or "")

    def describe(self) -> dict[str, object]:
        """Return the question with its tables."""
        facts = {"answer": str(self.answer), "needs": ", ".join(self.form.needs)}
        tables = {name: _rows(rows) for name, rows in self.tables.items()}
        return {"title": self.form.text.format(self.good), "facts": facts | tables}


def _rows(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{good} {figure}" for good, figure in rows.items())
