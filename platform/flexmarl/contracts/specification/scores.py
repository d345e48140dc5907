"""What a reply to a row of a dataset is worth: a weighted mean of scores between 0 and 1.

A score is computed in one of three places. `here`: by pure code of `flexmarl.algorithms.scores`. `apart`: by
`workers.scoring`, in processes that can be killed, since what a model wrote may make it hang. `asked`: by an agent of
the run, in a turn of its own.

Invariant: what a user writes here cannot make a score slow. Patterns run in an engine whose time grows in proportion
to the text, schemas name nothing outside or above themselves, and what runs apart has deadlines.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, StringConstraints, TypeAdapter, model_validator
from pydantic_core import SchemaError

from flexmarl.contracts.ids import Name
from flexmarl.contracts.plugins import Kind, OneOf, PluginOptions
from flexmarl.contracts.problems import Problem

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec

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
    pays: Literal["all", "team", "seats"] | tuple[Name, ...] = "all"
    """Whose score it is part of: of everybody's; of the team's alone; of each seat's own alone; or of the seats that
    are named. A seat that no score pays is paid with the team."""

    deterministic: ClassVar[bool] = True
    """Whether equal rows and replies get equal scores, whenever and wherever they are scored."""
    computed: ClassVar[Literal["here", "apart", "asked"]] = "here"
    """Where: see this module."""

    @property
    def label(self) -> str:
        return self.name or self.plugin_name()

    def counts_for(self, seat: str | None) -> bool:
        """Say whether it is part of a seat's own score, or of the team's for None."""
        if seat is None:
            return self.pays in ("all", "team")
        return self.pays in ("all", "seats") or seat in self.pays

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a promise of bits that the score cannot hold."""
        if spec.mechanisms.ordered and not self.deterministic:
            yield Problem(
                pointer="/mechanisms/ordered",
                code="not_with_this_score",
                detail=f"Ordered runs must be bitwise reproducible; the score {self.label} ({self.type}) is not.",
                hint="Set false.",
            )


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


class MathOptions(AnswerScoreOptions):
    """The answer is mathematically equal to the row's: fractions, roots, intervals, sets, units, LaTeX or plain.

    The row's answer may be like those of GSM8K (`... #### 72`) or of MATH (LaTeX, bare or in \\boxed{}).
    """

    type: Literal["math"] = "math"
    digits: int = Field(default=6, ge=1, le=15)
    """Decimal places to which numbers without an exact form are compared."""
    cpu_s: float = Field(default=5.0, gt=0.0, le=60.0)
    """Processor time of one comparison; a reply that takes more is worth 0."""

    computed: ClassVar[Literal["here", "apart", "asked"]] = "apart"


class CodeOptions(ScoreOptions):
    """The Python program in the reply passes the row's tests, run in a sandbox without network.

    Tests stand in a column of the row: `[{"input": ..., "output": ...}]`, or code with asserts.
    """

    type: Literal["code"] = "code"
    tests: str = Field(default="tests", min_length=1, max_length=200)
    """Column with the row's tests."""
    form: Literal["stdio", "asserts"] = "stdio"
    """`stdio`: a program is given each input and must print the output; `asserts`: lines of code, or a list of them,
    run after the reply in its own interpreter."""
    read: Literal["fence", "tag", "whole"] = "fence"
    """What of a reply is the program: its last block between ``` lines, what stands in <answer></answer>, or all."""
    partial: bool = False
    """The score is the share of the tests that pass; else 1 where all do."""
    cpu_s: float = Field(default=5.0, gt=0.0, le=120.0)
    """Processor time of one test."""
    wall_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Time of all tests of a reply together."""
    memory_mib: int = Field(default=512, ge=64, le=16_384)
    """Address space of the program."""
    output_kib: int = Field(default=256, ge=1, le=16_384)
    """What the program may print in one test, and write into its folder."""

    deterministic: ClassVar[bool] = False
    computed: ClassVar[Literal["here", "apart", "asked"]] = "apart"

    @model_validator(mode="after")
    def _time_for_one_test(self) -> Self:
        if self.wall_s < self.cpu_s:
            raise ValueError(f"wall_s {self.wall_s:g} is below cpu_s {self.cpu_s:g}; set at least {self.cpu_s:g}")
        return self


class JudgeOptions(ScoreOptions):
    """An agent of the run that is not trained grades the answer by a rubric, in turns of its own.

    It ends with a line `score: NUMBER`. An answer that it gives no such number is not scored, and its episode fails.
    """

    type: Literal["judge"] = "judge"
    agent: Name = "judge"
    """Agent that grades: frozen, with a policy, an external model, instructions and sampling like any other."""
    rubric: str = Field(default="Is the answer right?", min_length=1, max_length=8000)
    """What it grades by."""
    lowest: float = Field(default=0.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    """Number that is worth 0."""
    highest: float = Field(default=10.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    """Number that is worth 1."""
    shows_answer: bool = True
    """It is told the row's answer."""
    verdict_tokens: int = Field(default=256, ge=1, le=16_384)
    """Maximum tokens of a verdict; `sampling.max_tokens` of the agent may set fewer."""
    tries: int = Field(default=2, ge=1, le=5)
    """How often it is asked for a number before the answer counts as not scored."""

    deterministic: ClassVar[bool] = False
    computed: ClassVar[Literal["here", "apart", "asked"]] = "asked"

    @model_validator(mode="after")
    def _upwards(self) -> Self:
        if self.highest <= self.lowest:
            raise ValueError(f"highest {self.highest:g} is not above lowest {self.lowest:g}; set a larger number")
        return self

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse a judge that learns, and groups that branch: a verdict belongs to an episode's one answer."""
        yield from super().refusals(spec)
        agent = spec.agents.get(self.agent)
        if agent is not None and agent.trainable:
            yield Problem(
                pointer=f"/agents/{self.agent}/trainable",
                code="judge_is_frozen",
                detail=f"{self.agent} grades answers; a judge that is trained would learn to grade as it pleases.",
                hint="Set false.",
            )
        if spec.sampling.copies:
            yield Problem(
                pointer="/sampling/branch_controller/type",
                code="not_with_judge",
                detail="Groups that branch score each answer at once; a judge grades ended episodes.",
                hint="Set none.",
            )


SCORE: Kind[ScoreOptions] = Kind(
    "score",
    "/environment/scores",
    ScoreOptions,
    (
        ExactOptions, ContainsOptions, RegexOptions, NumberOptions, MultipleChoiceOptions, JsonSchemaOptions,
        LengthOptions, FormatOptions, MathOptions, CodeOptions, JudgeOptions,
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
