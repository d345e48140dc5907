"""What replies to rows of datasets are worth: pure functions of a row and a reply, and how parts become one number.

Invariants: equal rows and replies get equal scores, in any process; a score reads so many characters of a reply as
`MOST_CHARACTERS` says, in time proportional to them. What scores computed elsewhere say comes in as data; a part that
nobody has computed is missing, and never 0.
"""

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.contracts.specification.scores import (
    SCORE,
    ContainsOptions,
    ExactOptions,
    FormatOptions,
    JsonSchemaOptions,
    LengthOptions,
    MultipleChoiceOptions,
    NumberOptions,
    RegexOptions,
    ScoreOptions,
    checker,
    literally,
    matches,
)
from flexmarl.language.answers import MOST_CHARACTERS, answer_in, last_number
from flexmarl.language.dataset_rows import DatasetRow

MOST_NESTING = 64

ScoreSettings = TypeVar("ScoreSettings", bound=ScoreOptions)


class RowScore(Plugin[ScoreSettings], ABC):
    """One way to judge replies."""

    @abstractmethod
    def score(self, row: DatasetRow, reply: str) -> float:
        """Return what a reply to a row is worth, from 0 to 1."""


class ExactScore(RowScore[ExactOptions]):
    Options = ExactOptions

    def score(self, row: DatasetRow, reply: str) -> float:
        """Compare texts in their plain form."""
        answer = answer_in(self.options.read, reply)
        return float(answer is not None and plain(answer, self.options.case) == plain(row.answer, self.options.case))


class ContainsScore(RowScore[ContainsOptions]):
    Options = ContainsOptions

    def score(self, row: DatasetRow, reply: str) -> float:
        """Look for the answer; an empty one is in no reply."""
        wanted = plain(row.answer, self.options.case)
        return float(bool(wanted) and wanted in plain(reply, self.options.case))


class RegexScore(RowScore[RegexOptions]):
    Options = RegexOptions

    def score(self, row: DatasetRow, reply: str) -> float:
        """Look for the pattern with the row's answer in it."""
        return float(found(literally(row.answer, self.options.pattern), reply))


class NumberScore(RowScore[NumberOptions]):
    Options = NumberOptions

    def score(self, row: DatasetRow, reply: str) -> float:
        """Compare last numbers; commas between digits are separators of thousands."""
        answer = answer_in(self.options.read, reply)
        said, wanted = last_number(answer or ""), last_number(row.answer)
        if said is None or wanted is None:
            return 0.0
        # Decimal fractions have no exact binary form: 0.3 and 0.1 + 0.2 are equal with any tolerance.
        return float(abs(said - wanted) <= self.options.tolerance + 1e-9 * max(abs(wanted), 1.0))


class MultipleChoiceScore(RowScore[MultipleChoiceOptions]):
    Options = MultipleChoiceOptions

    def score(self, row: DatasetRow, reply: str) -> float:
        """Compare last letters that stand alone."""
        alone = re.compile(rf"(?<![A-Za-z])[{self.options.letters}](?![A-Za-z])")
        said, wanted = alone.findall(answer_in(self.options.read, reply) or ""), alone.findall(row.answer)
        return float(bool(said) and bool(wanted) and said[-1] == wanted[-1])


class JsonSchemaScore(RowScore[JsonSchemaOptions]):
    Options = JsonSchemaOptions

    def __init__(self, options: JsonSchemaOptions) -> None:
        super().__init__(options)
        self._validator = checker(options.accepts)

    def score(self, row: DatasetRow, reply: str) -> float:
        """Read the answer as JSON and check it."""
        try:
            value = json.loads(answer_in(self.options.read, reply) or "")
        except (ValueError, RecursionError):
            return 0.0
        return float(_depth(value) <= MOST_NESTING and self._validator.is_valid(value))


class LengthScore(RowScore[LengthOptions]):
    Options = LengthOptions

    def score(self, row: DatasetRow, reply: str) -> float:
        """Fall in a straight line between budget and limit."""
        over = len(reply.strip()) - self.options.budget
        return min(1.0, max(0.0, 1.0 - over / (self.options.limit - self.options.budget)))


class FormatScore(RowScore[FormatOptions]):
    Options = FormatOptions

    def score(self, row: DatasetRow, reply: str) -> float:
        """Count the tags."""
        start, end = f"<{self.options.tag}>", f"</{self.options.tag}>"
        once = reply.count(start) == 1 and reply.count(end) == 1
        return float(once and reply.index(start) < reply.index(end))


# Of the scores that are computed here; the others are made where they are computed.
SCORES: Registry[RowScore[Any]] = Registry(
    SCORE,
    (
        ExactScore,
        ContainsScore,
        RegexScore,
        NumberScore,
        MultipleChoiceScore,
        JsonSchemaScore,
        LengthScore,
        FormatScore,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScorePart:
    """What one score says of a reply."""

    value: float
    """From 0 to 1."""
    why: str = ""
    """In words, where the number alone does not say it: a test that failed, a verdict."""
    broken: bool = False
    """The score raised; its value is 0."""


Parts = Mapping[str, ScorePart]
"""By the names of the scores."""


class RowScorer:
    """Judges replies by the scores that are computed here, and weighs all of them."""

    def __init__(self, options: Sequence[ScoreOptions]) -> None:
        """Make the scores. Raises LookupError for one of a type that this process does not have."""
        self.options = tuple(options)
        self._here: list[tuple[str, RowScore[Any]]] = [
            (one.label, SCORES.make(one)) for one in options if one.computed == "here"
        ]

    def __deepcopy__(self: "RowScorer", memo: dict[int, Any]) -> "RowScorer":
        """Return itself: nothing of an episode is in it."""
        return self

    def parts(self, row: DatasetRow, reply: str) -> dict[str, ScorePart]:
        """Judge a reply, whatever it is, by the scores that are computed here."""
        read = reply[:MOST_CHARACTERS]
        parts: dict[str, ScorePart] = {}
        for name, score in self._here:
            try:
                parts[name] = ScorePart(min(1.0, max(0.0, float(score.score(row, read)))))
            except Exception as error:  # scores of other distributions read what a model wrote
                parts[name] = ScorePart(0.0, f"the score raised {type(error).__name__}", broken=True)
        return parts

    def pays(self, seat: str) -> bool:
        """Say whether a seat has a score of its own; else it is paid with the team."""
        return any(one.counts_for(seat) for one in self.options)

    def worth(self, parts: Parts, seat: str | None = None) -> float:
        """Return the weighted mean of the parts that count for a seat, for the team without one.

        Parts that are missing are left out with their weights; 0 where none is there.
        """
        counted = [(one.weight, parts[one.label].value) for one in self.options if self._counts(one, parts, seat)]
        whole = sum(weight for weight, _ in counted)
        return sum(weight * value for weight, value in counted) / whole if whole else 0.0

    @staticmethod
    def _counts(one: ScoreOptions, parts: Parts, seat: str | None) -> bool:
        return one.label in parts and one.counts_for(seat)


def plain(text: str, case: bool) -> str:
    """Return a text in the form in which answers are compared."""
    spaced = " ".join(unicodedata.normalize("NFKC", text).split()).rstrip(".!? ")
    return spaced if case else spaced.casefold()


def found(pattern: str, text: str) -> bool:
    """Say whether a pattern is found in a text."""
    try:
        _compiled(pattern).validate_python(text)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> TypeAdapter[str]:
    return matches(pattern)


def _depth(value: object) -> int:
    """Return how deep a JSON value is nested."""
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        inner = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
        waiting += [(one, depth + 1) for one in inner]
    return deepest
