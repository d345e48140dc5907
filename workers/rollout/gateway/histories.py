"""What a program's calls of one seat have in common: which messages are new, and which history is another one.

Invariant: messages are new only behind all that the seat has read and said, message by message with the same content;
ids of calls and thoughts, which programs need not send back, and blanks around a reply are no part of that. Whatever
else comes is a history of its own, which begins a new chain.
"""

import json
from collections.abc import Sequence

from flexmarl.language.messages import Message


class SeatHistory:
    """The conversation of one seat, as its program knows it."""

    def __init__(self) -> None:
        self._said: tuple[Message, ...] = ()

    @property
    def said(self) -> tuple[Message, ...]:
        """All that the seat has read and said."""
        return self._said

    def new(self, messages: Sequence[Message]) -> tuple[Message, ...] | None:
        """Return what is new to the seat; None where the history is another one. At first, all is new."""
        known = len(self._said)
        if len(messages) <= known or any(not _same(*pair) for pair in zip(self._said, messages[:known], strict=True)):
            return None
        return tuple(messages[known:])

    def answered(self, messages: Sequence[Message], reply: Message) -> None:
        """Take in what the seat was asked, all of it, and what it said."""
        self._said = (*messages, reply)


def _same(known: Message, sent: Message) -> bool:
    return _essence(known) == _essence(sent)


def _essence(message: Message) -> tuple[object, ...]:
    own = message.role == "assistant"
    calls = [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in message.tool_calls]
    return (message.role, message.content.strip() if own else message.content, calls)
