"""Tools for models whose chat template knows none: one convention, in words of system, user and assistant.

The system message describes the tools in the words of Qwen3's template, and comes first if there was none. A call
stands in the assistant's words, behind what it says, as `<tool_call>` with a JSON object. Results that follow each
other are one message of the user, each a `<tool_response>`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from flexmarl.language.messages import Message
from flexmarl.language.replies import written_call

_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_BEHIND = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def in_words(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    """Return a conversation with its tools, calls and results written out."""
    written = tuple(_written(messages))
    if not tools:
        return written
    described = _BEFORE + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _BEHIND
    if written and written[0].role == "system":
        return (replace(written[0], content=f"{written[0].content}\n\n{described}"), *written[1:])
    return (Message("system", described), *written)


def _written(messages: Sequence[Message]) -> Iterator[Message]:
    for results, group in groupby(messages, key=lambda message: message.role == "tool"):
        if results:
            texts = (f"<tool_response>\n{message.content}\n</tool_response>" for message in group)
            yield Message("user", "\n".join(texts))
        else:
            yield from (_with_calls(message) if message.tool_calls else message for message in group)


def _with_calls(message: Message) -> Message:
    words = [message.content] if message.content else []
    return replace(message, content="\n".join([*words, *map(written_call, message.tool_calls)]), tool_calls=())
