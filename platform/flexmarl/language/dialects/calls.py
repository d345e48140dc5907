"""One call of a program as every dialect says it: what it asks of which model, its answer, and how it is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flexmarl.language.messages import Message


class CallRefused(Exception):
    """A call that gets no answer. `field` is what is wrong with its body, empty where nothing is."""

    def __init__(self, status: int, code: str, detail: str, field: str = "") -> None:
        super().__init__(status, code, detail, field)
        self.status, self.code, self.detail, self.field = status, code, detail, field

    def __str__(self) -> str:
        return self.detail


def wrong(field: str, fact: str, rule: str, code: str = "invalid_value") -> CallRefused:
    """Make the refusal of a field: what is wrong with it, and what would not be."""
    return CallRefused(400, code, f"{field}: {fact}; {rule}.", field)


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """What an agent said, as its program is told."""

    id: str
    message: Message
    """Its calls of tools have ids."""
    finish: str
    """`stop`: it is whole; `length`: it was cut off at the most tokens."""
    prompt_tokens: int
    tokens: int
    made_at: int
    """Seconds since the epoch."""
    stopped_at: str | None = None
    """Text of the call's own that ended it, and is no part of it."""


@dataclass(slots=True, eq=False)
class ModelCall:
    """A call that was understood."""

    model: str
    """Who is asked: a seat of a session, or an agent of a run."""
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    usage_in_stream: bool = False
    instructed: bool = False
    """Whether its first message is an instruction that calls which follow it do not read."""
    follows: str = ""
    """Id of the answer whose conversation its messages go on from; empty: they are the whole one."""
    structured: str = ""
    """What its reply must be, a `StructuredOutput` of the specification as JSON; empty: anything."""
    structured_field: str = ""
    """The field of its body that says so."""
    said_again: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its body that its dialect repeats in the answer."""
