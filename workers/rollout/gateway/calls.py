"""One call of an agent program: what it asks of which seat, its answer, and how it is refused. Of no dialect."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flexmarl.language.messages import Message

OVERFLOW = re.compile(r"^engine: context_overflow: ")
UNREADABLE = re.compile(r"^environment: TemplateError: ")


class CallRefused(Exception):
    """A call that gets no answer. `field` is what is wrong with its body, empty where nothing is."""

    def __init__(self, status: int, code: str, detail: str, field: str = "") -> None:
        super().__init__(status, code, detail, field)
        self.status, self.code, self.detail, self.field = status, code, detail, field

    def __str__(self) -> str:
        return self.detail


def wrong(field: str, fact: str, rule: str) -> CallRefused:
    """Make the refusal of a field: what is wrong with it, and what would not be."""
    return CallRefused(400, "invalid_value", f"{field}: {fact}; {rule}.", field)


def ended(reason: str) -> CallRefused:
    """Make the refusal of calls in a session that is over. 410: clients ask again after a 409."""
    if OVERFLOW.match(reason):
        return CallRefused(400, "context_length_exceeded", reason, "messages")
    if UNREADABLE.match(reason):
        return CallRefused(400, "invalid_value", reason, "messages")
    return CallRefused(410, "session_ended", f"The session has ended: {reason}")


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


def _unanswered() -> "asyncio.Future[CallAnswer]":
    """Return a future whose refusal may stay unread: its client may have gone."""
    future: asyncio.Future[CallAnswer] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda one: one.cancelled() or one.exception())
    return future


@dataclass(slots=True, eq=False)
class ProgramCall:
    """A call that was understood."""

    seat: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    usage_in_stream: bool = False
    instructed: bool = False
    """Whether its first message is an instruction that calls which follow it do not read."""
    follows: str = ""
    """Id of the answer whose conversation its messages go on from; empty: they are the whole one."""
    said_again: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its body that its dialect repeats in the answer."""
    digest: str = ""
    """Of path and body: what a repetition shares."""
    again: bool | None = None
    """Whether it repeats an earlier one, where its client says so."""
    id: str = ""
    """Given by its session."""
    answer: "asyncio.Future[CallAnswer]" = field(default_factory=_unanswered)

    def refuse(self, refused: CallRefused) -> None:
        """Answer it with a refusal, unless it has an answer."""
        if not self.answer.done():
            self.answer.set_exception(refused)
