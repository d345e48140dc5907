"""How an agent's replies are sampled: the parameters of the field, by vLLM's names and with its meaning."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from flexmarl.contracts.base import Strict

StopString = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class ChoiceOutput(Strict):
    """Each reply is one of given texts."""

    type: Literal["choice"] = "choice"
    choices: tuple[Annotated[str, StringConstraints(min_length=1, max_length=1000)], ...] = Field(
        min_length=1, max_length=1000, examples=[["yes", "no"]]
    )


class RegexOutput(Strict):
    """Each reply matches a regular expression as a whole."""

    type: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=2000, examples=["[0-9]+"])

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        except RecursionError:
            raise ValueError("is not a regular expression: it is nested too deeply") from None
        return pattern


class JsonOutput(Strict):
    """Each reply is a JSON value of a schema."""

    type: Literal["json_schema"] = "json_schema"
    of: dict[str, Any] = Field(examples=[{"type": "object", "properties": {"answer": {"type": "integer"}}}])
    """The JSON schema."""


StructuredOutput = Annotated[ChoiceOutput | RegexOutput | JsonOutput, Field(discriminator="type")]


class Sampling(Strict):
    temperature: float = Field(default=1.0, gt=0.0, le=4.0)
    """Softmax temperature in training episodes; evaluation is greedy."""
    max_tokens: int | None = Field(default=None, ge=1, le=16_384)
    """Upper limit of response tokens per turn, where it is lower than what the environment asks for; null: that
    alone."""
    stop: tuple[StopString, ...] = Field(default=(), max_length=4)
    """A reply ends with the first token that completes one of these texts; the environment reads what stands before
    it."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the fewest tokens whose probabilities add up to this; 1: from all. Frozen agents only."""
    top_k: int = Field(default=0, ge=0, le=1_000_000)
    """Sample from this many of the likeliest tokens; 0: from all. Frozen agents only."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Sample from tokens that have at least this share of the likeliest one's probability; 0: from all. Frozen agents
    only."""
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=4.0)
    """Logits of tokens that stand in prompt or reply are divided by this where positive, else multiplied; 1: none.
    Frozen agents only."""
    structured: StructuredOutput | None = None
    """What each reply must be. Trained agents learn from it as drawn from what it allows."""

    @field_validator("stop", mode="before")
    @classmethod
    def _a_text_is_one(cls, data: object) -> object:
        return (data,) if isinstance(data, str) else data
