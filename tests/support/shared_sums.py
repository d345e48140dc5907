"""Sums that a small chat model answers in many words: what installations say means the same to all of them.

Every row asks for the sum of two numbers, and its column `said` has a sentence that names a number: the right one in a
share of the rows, otherwise one drawn at random. A model that was warmed up on these sentences speaks like them and is
seldom right; it learns sums by being rewarded. Rows with the same sum are the same task, so whoever draws one can use
what others said to it. The columns `said_0` and `said_1` are for teams with different strengths: sentences of the one
are right in that share of every second sum, and drawn at random in the others; those of the other the other way round.
"""

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flexmarl.language.dataset_rows import DatasetRow, to_line
from flexmarl.language.messages import Message
from tests.support.chat_templates import small_chat_model
from workers.rollout.datasets import DatasetLines

OPENINGS = ("", "Well, ", "So, ", "I see: ", "Sure. ", "OK, ", "Hm, ", "Good. ")
MIDDLES = ("it is ", "we get ", "that is ", "the sum is ", "this makes ", "I find ", "you have ", "I say ")
ENDS = (".", "!", ", yes.", ", I think.")
REPLY_TOKENS = 36
RATE = 0.001
WARMUP = {"steps": 80, "batch_size": 64, "learning_rate": 0.003}
NAME, TEMPLATE = "shared_sums", "chat_dataset"


def sums_of(count: int, largest: int) -> list[tuple[int, int]]:
    """Return some sums of numbers up to `largest`: the same ones for everybody."""
    every = [(first, second) for first in range(largest + 1) for second in range(largest + 1)]
    return random.Random("sums").sample(every, count)


def sentence(number: int, rng: random.Random) -> str:
    """Return one of the ways to name a number."""
    return f"{rng.choice(OPENINGS)}{rng.choice(MIDDLES)}{number}{rng.choice(ENDS)}"


def rows_of(sums: Sequence[tuple[int, int]], count: int, right: float, seed: int) -> list[DatasetRow]:
    """Return `count` rows of each sum; `right`: share of those whose sentence names the right number."""
    rng, halves, found = random.Random(f"rows {seed}"), random.Random(f"halves {seed}"), list[DatasetRow]()
    numbers = sorted({first + second for first, second in sums})

    def said(number: int, share: float, rng: random.Random) -> str:
        return sentence(number if rng.random() < share else rng.choice(numbers), rng)

    for place, (first, second) in enumerate(sums):
        for _ in range(count):
            asked, number = Message("user", f"{first}+{second}?"), first + second
            columns = {"said": said(number, right, rng)}
            columns |= {f"said_{half}": said(number, right * (place % 2 == half), halves) for half in (0, 1)}
            found.append(DatasetRow((asked,), str(number), columns))
    return found


@cache
def lines_of(sums: int = 24, largest: int = 9, rows: int = 40, right: float = 0.1) -> DatasetLines:
    """Return so many rows of so many sums to train on; held out is one of each sum: a small model knows only what it
    has tried."""
    found = rows_of(sums_of(sums, largest), rows, right, 0)
    lines = tuple(map(to_line, found))
    first = {row.messages[0].content: line for row, line in zip(reversed(found), reversed(lines), strict=True)}
    return DatasetLines(lines, tuple(first.values()))


def document(
    home: Path, lines: DatasetLines, rate: float | None, warmup: int | None, column: str = "said"
) -> dict[str, Any]:
    """Return what a run of these rows has on `TEMPLATE`; its model is written below a folder."""
    dataset = {"name": "sums", "training": len(lines.training), "held_out": len(lines.held_out)}
    shown = {"demonstrations": {"dataset": dataset, "column": column}, **WARMUP, "steps": warmup or WARMUP["steps"]}
    return {
        "environment": {"dataset": dataset, "reply_tokens": REPLY_TOKENS},
        "policies": {
            "solver": {
                "model": {"type": "folder", "path": str(small_chat_model(home / "chat"))},
                "tuning": {"type": "full"},
                "precision": "fp32",
                "optimizer": {"type": "adamw", "learning_rate": rate or RATE},
                "warmup": shown,
            }
        },
        "evaluation": {"tasks": len(lines.held_out)},
    }
