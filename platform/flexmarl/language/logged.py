"""Logged conversations turn by turn, and whether what was said instead is the same turn.

Invariants: reading loses nothing but thoughts, which are no part of what is compared; a call is equal to another when
its name and the JSON of its arguments are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexmarl.language.dataset_rows import DatasetRow
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.replies import ReplyMarks, message_of, read

_MARKS = ReplyMarks(thoughts=True, calls=True)
_SPEAKERS = ("system", "user", "assistant", "tool")


class NotLogged(ValueError):
    """A row has no conversation that can be replayed; the text says why."""


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn of the logged assistant."""

    before: tuple[Message, ...]
    """What it was told since its last turn: never empty."""
    said: Message
    """Without thoughts."""


def turns_of(row: DatasetRow, column: str, most: int) -> tuple[LoggedTurn, ...]:
    """Return the first turns of a row's conversation, at most so many. Raises NotLogged."""
    found: list[LoggedTurn] = []
    before: list[Message] = []
    for message in conversation_of(row, column):
        if message.role != "assistant":
            before.append(message)
            continue
        if not before:
            rule = "two turns of the assistant follow each other" if found else "it begins with the assistant"
            raise NotLogged(f"the conversation cannot be replayed: {rule}")
        said = spoken(message)
        if not said.content.strip() and not said.tool_calls:
            raise NotLogged(f"turn {len(found) + 1} of the assistant says nothing")
        found.append(LoggedTurn(tuple(before), said))
        before = []
    if not found:
        raise NotLogged("the assistant says nothing in it")
    return tuple(found[:most])


def conversation_of(row: DatasetRow, column: str) -> tuple[Message, ...]:
    """Return a row's conversation: of a column, or its messages and its answer. Raises NotLogged."""
    if not column:
        return (*row.messages, Message("assistant", row.answer)) if row.answer.strip() else row.messages
    said = row.columns.get(column)
    if not isinstance(said, list) or not said:
        raise NotLogged(f"column {column} has no list of messages")
    return tuple(_message(column, place, one) for place, one in enumerate(said))


def tools_of(row: DatasetRow, column: str) -> tuple[dict[str, Any], ...]:
    """Return the functions that may be called, as JSON schemas of functions. Raises NotLogged."""
    if not column:
        return ()
    offered = row.columns.get(column) or []
    if not isinstance(offered, list) or not all(isinstance(one, dict) for one in offered):
        raise NotLogged(f"column {column} has no list of functions")
    return tuple(one if "function" in one else {"type": "function", "function": one} for one in offered)


def spoken(message: Message) -> Message:
    """Return what a message of an assistant says: its words, and its calls, without thoughts and ids."""
    if not message.tool_calls:
        message = replace(message_of(read(message.content, _MARKS)), reasoning="")
    calls = tuple(replace(call, id="") for call in message.tool_calls)
    return Message("assistant", message.content, tool_calls=calls)


def called(message: Message) -> tuple[str, ...]:
    """Return the names of the tools that a message calls, in its order."""
    return tuple(call.name for call in message.tool_calls)


def same_calls(one: Message, other: Message) -> bool:
    """Whether two messages call the same tools with the same arguments, in one order."""
    return [_essence(call) for call in one.tool_calls] == [_essence(call) for call in other.tool_calls]


def _essence(call: ToolCall) -> tuple[str, str]:
    return call.name, json.dumps(call.arguments, sort_keys=True)  # as JSON: for Python 1 equals True


def _message(column: str, place: int, one: object) -> Message:
    where = f"message {place + 1} of column {column}"
    if not isinstance(one, Mapping) or one.get("role") not in _SPEAKERS:
        raise NotLogged(f"{where} has none of the roles {', '.join(_SPEAKERS)}")
    content, calls = one.get("content"), one.get("tool_calls") or []
    if not isinstance(content, str) and not (content is None and calls):
        raise NotLogged(f"{where} has no text as its content")
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise NotLogged(f"{where} has no list of tool_calls")
    return Message(one["role"], content or "", tool_calls=tuple(_call(where, call) for call in calls))


def _call(where: str, call: object) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = None
        if isinstance(arguments, dict):
            return ToolCall(function["name"], arguments)
    raise NotLogged(f"{where} calls no function by a name and an object of arguments")
