"""What a reply to a row of a dataset is worth: a weighted mean of scores between 0 and 1. Code: `flexmarl.algorithms`.

Invariant: what a user writes here cannot make a score slow. Patterns run in an engine whose time grows in proportion
to the text, and schemas name nothing outside or above themselves.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, StringConstraints, TypeAdapter, model_validator
from pydantic_core import SchemaError

from flexmarl.contracts.plugins import Kind, OneOf, PluginOptions

ANSWER_HERE = "{answer}"
"""Stands in a pattern for the answer of the row, letter by letter."""
SCHEMA_RULES = "jsonschema_rs"
MOST_SCORES = 16
MOST_SCHEMA_CHARACTERS = 10_000
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def matches(pattern: str) -> TypeAdapter[str]:
    """Return what accepts texts in which a pattern is found, in time proportional to them. Raises SchemaError."""
    return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])


def compilable(pattern: str) -> str:
    """Return a pattern that the engine takes. Raises ValueError."""
    try:
        matches(pattern.replace(ANSWER_HERE, "answer"))
    except SchemaError as error:
        said = next((line.strip() for line in reversed(str(error).splitlines()) if "error:" in line), str(error)[:200])
        raise ValueError(f"{said}; patterns have no look-around and no back references") from error
    return pattern


def checker(schema: dict[str, Any]) -> Any:
    """Return what checks values by a schema, a Draft202012Validator. Raises jsonschema_rs.ValidationError."""
    # Not imported with this module: engines read specifications in an environment of vLLM's, which does not have it.
    rules = import_module(SCHEMA_RULES)
    return rules.Draft202012Validator(schema, pattern_options=rules.RegexOptions())


def checkable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema that replies can be checked by. Raises ValueError."""
    if len(repr(schema)) > MOST_SCHEMA_CHARACTERS:
        raise ValueError(f"the schema has more than {MOST_SCHEMA_CHARACTERS} characters")
    # Schemas that name themselves can take time that doubles with each line of them.
    for name, _ in _members(schema):
        if name in _REFERENCES:
            raise ValueError(f"{name} is not allowed; write the schema that it names in its place")
    if find_spec(SCHEMA_RULES) is not None:  # where a specification is submitted, it is
        try:
            checker(schema)
        except import_module(SCHEMA_RULES).ValidationError as error:
            raise ValueError(f"{'/'.join(map(str, error.instance_path)) or 'schema'}: {error.message[:200]}") from error
    return schema


def _members(node: object) -> Iterator[tuple[str, Any]]:
    """Walk over all members of all objects of a JSON value."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield name, value
            yield from _members(value)
    elif isinstance(node, list):
        for value in node:
            yield from _members(value)


class ScoreOptions(PluginOptions):
    """What a reply to a row of a dataset is worth."""

    name: str = Field(default="", pattern=r"^([a-z][a-z0-9_]{0,31})?$")
    """Under which it stands on trajectories and among the metrics; its type when absent."""
    weight: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Share of the whole, in proportion to the weights of the others."""

    @property
    def label(self) -> str:
        return self.name or self.plugin_name()


class AnswerScoreOptions(ScoreOptions):
    """A score of the answer that a reply holds."""

    read: Literal["whole", "last_line", "tag", "boxed"] = "whole"
    """What of a reply is its answer: all of it, its last line, what stands in <answer></answer>, or in \\boxed{}."""


class ExactOptions(AnswerScoreOptions):
    """The answer equals that of the row. Spaces, full stops at the end and, unless asked, case do not count."""

    type: Literal["exact"] = "exact"
    case: bool = False
    """Upper and lower case count."""


class ContainsOptions(ScoreOptions):
    """The reply contains the row's answer."""

    type: Literal["contains"] = "contains"
    case: bool = False
    """Upper and lower case count."""


class RegexOptions(ScoreOptions):
    """A pattern is found in the reply."""

    type: Literal["regex"] = "regex"
    pattern: Annotated[str, AfterValidator(compilable)] = Field(default=ANSWER_HERE, min_length=1, max_length=1000)
    """Regular expression without look-around and back references; {answer} stands for the row's answer."""


class NumberOptions(AnswerScoreOptions):
    """The last number of the answer is the last number of the row's answer."""

    type: Literal["number"] = "number"
    tolerance: float = Field(default=0.0, ge=0.0)
    """Largest difference that still counts as equal."""


class MultipleChoiceOptions(AnswerScoreOptions):
    """The last letter that stands alone is that of the row's answer."""

    type: Literal["multiple_choice"] = "multiple_choice"
    letters: str = Field(default="ABCDE", pattern=r"^[A-Z]{2,26}$")
    """The choices."""


class JsonSchemaOptions(AnswerScoreOptions):
    """The answer is JSON that a schema accepts."""

    type: Literal["json_schema"] = "json_schema"
    accepts: Annotated[dict[str, JsonValue], AfterValidator(checkable)] = {}
    """JSON Schema, draft 2020-12, without references."""


class LengthOptions(ScoreOptions):
    """Full score up to a budget of characters, from there down to nothing at a limit."""

    type: Literal["length"] = "length"
    budget: int = Field(default=400, ge=0, le=100_000)
    """Characters of a reply that cost nothing."""
    limit: int = Field(default=800, ge=1, le=200_000)
    """Characters at which the score is 0."""

    @model_validator(mode="after")
    def _down_after_the_budget(self) -> Self:
        if self.limit <= self.budget:
            raise ValueError(f"limit {self.limit} is not above budget {self.budget}; set at least {self.budget + 1}")
        return self


class FormatOptions(ScoreOptions):
    """The reply has exactly one part between two tags."""

    type: Literal["format"] = "format"
    tag: str = Field(default="answer", pattern=r"^[a-z][a-z0-9_]{0,31}$")
    """Name of the tag: answer stands for <answer> and </answer>."""


SCORE: Kind[ScoreOptions] = Kind(
    "score",
    "/environment/scores",
    ScoreOptions,
    (
        ExactOptions, ContainsOptions, RegexOptions, NumberOptions, MultipleChoiceOptions, JsonSchemaOptions,
        LengthOptions, FormatOptions,
    ),
)  # fmt: skip
ScoreSpec = Annotated[ScoreOptions, OneOf(SCORE)]


def distinct(scores: tuple[ScoreOptions, ...]) -> tuple[ScoreOptions, ...]:
    """Return scores of which no two have one name. Raises ValueError."""
    if not scores:
        raise ValueError("there is no score; write exact")
    labels = [score.label for score in scores]
    if len(scores) > MOST_SCORES:
        raise ValueError(f"there are {len(scores)} scores; write at most {MOST_SCORES}")
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two scores are named {label}; set name of one of them")
    return scores


def literally(answer: str, pattern: str) -> str:
    """Return a pattern with a row's answer in it, letter by letter."""
    return pattern.replace(ANSWER_HERE, re.escape(answer))
