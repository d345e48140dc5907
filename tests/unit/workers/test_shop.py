"""Shops: what each seat knows, and that a question is answered by the figures of those who know them."""

import random
import re

import pytest

from flexmarl.contracts.specification.shop import TABLES, Shop
from workers.rollout.environments.base import Ask, Reply
from workers.rollout.environments.registry import family_of
from workers.rollout.environments.shop import drawn

COMPUTED = {
    "not returned": lambda seen: seen["analysis"] - seen["after_sales"],
    "without a coupon": lambda seen: seen["analysis"] - seen["marketing"],
    "cost together": lambda seen: seen["orders"] * seen["pricing"],
    "are left": lambda seen: seen["stock"] - seen["orders"],
    "worth": lambda seen: seen["stock"] * seen["pricing"],
    "orders of": lambda seen: seen["analysis"],
    "coupons": lambda seen: seen["marketing"],
    "returned": lambda seen: seen["after_sales"],
    "are ordered": lambda seen: seen["orders"],
    "price": lambda seen: seen["pricing"],
    "in stock": lambda seen: seen["stock"],
}
"""How a person would answer, by words of the question; the first that fit."""


def wise(ask: Ask, question: str, good: str, seen: dict[str, int]) -> str:
    """Play a team that knows arithmetic: workers say their figure, the planner computes."""
    if ask.role == "planner":
        if seen:
            return str(next(compute for words, compute in COMPUTED.items() if words in question)(seen))
        names = re.search(r"Ask (.*) by a line", ask.messages[-1].content)
        assert names is not None
        return "\n".join(f"ask {name}: how many {good}?" for name in names[1].split(", "))
    found = re.search(rf"{good} (\d+)", ask.messages[-1].content)
    assert found is not None
    seen[ask.role] = int(found[1])
    return found[1]


@pytest.mark.parametrize("assistant", TABLES)
def test_the_figures_that_workers_know_give_the_answer(assistant: str) -> None:
    family, forms = family_of(Shop(assistant=assistant)), set()
    for seed in range(200):
        episode, seen = family.make(seed, False, random.Random(0)), {}
        question = str(episode.describe()["title"])
        good = drawn(family.options, seed, False).good
        forms.add(question.replace(good, ""))
        while asks := episode.asks():
            episode.act([Reply(ask.role, wise(ask, question, good, seen)) for ask in asks])
        assert episode.outcome().solved, question
        assert int(episode.describe()["facts"]["answer"]) >= 0
    assert len(forms) == {"merchant": 5, "category": 6}[assistant], "each form occurs"


@pytest.mark.parametrize("assistant", TABLES)
def test_each_seat_reads_its_own_table_and_nobody_elses(assistant: str) -> None:
    question = drawn(Shop(assistant=assistant, goods=12), 1, False)
    episode = family_of(Shop(assistant=assistant, goods=12)).make(1, False, random.Random(0))
    (ask,) = episode.asks()
    told = ask.messages[-1].content
    assert not any(f"{good} {figure}" in told for rows in question.tables.values() for good, figure in rows.items())
    episode.act([Reply("planner", "\n".join(f"ask {name}: so?" for name in TABLES[assistant]))])
    asks = {ask.role: ask.messages[-1].content for ask in episode.asks()}
    for name, rows in question.tables.items():
        told = ", ".join(f"{good} {figure}" for good, figure in rows.items())
        assert [role for role, text in asks.items() if told in text] == [name]
        assert asks[name].endswith("\n\nso?")


def test_no_question_is_on_both_sides_and_one_figure_is_enough_where_it_is_said() -> None:
    options = Shop(goods=1, largest=9, held_out=40)
    drawn_ones = [[drawn(options, number, side) for number in range(40)] for side in (False, True)]
    assert [{one.held_out for one in side} for side in drawn_ones] == [{False}, {True}]
    sides = [set(map(repr, side)) for side in drawn_ones]
    assert not sides[0] & sides[1]
    assert len(sides[1]) > 30
    assert all(len(drawn(Shop(figures=1), number, False).form.needs) == 1 for number in range(40))
    assert any(len(drawn(Shop(), number, False).form.needs) == 2 for number in range(40))
