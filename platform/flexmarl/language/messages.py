"""Messages: what people, environments and agents say to each other."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Speaker = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that an assistant asks for."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Speaker
    content: str = ""
    reasoning: str = ""
    """What the assistant thought before it spoke, where its template keeps that apart."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Of a tool's message: the call that it answers."""

    def for_template(self) -> dict[str, Any]:
        """Return it in the form that chat templates of Hugging Face models read."""
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = [
                {
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                    **({"id": call.id} if call.id else {}),
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id:
            found["tool_call_id"] = self.tool_call_id
        return found


def characters(messages: Iterable[Message], tools: Sequence[dict[str, Any]] = ()) -> int:
    """Return how many characters messages and tools give a template to write: words, thoughts, calls and schemas."""
    said = sum(
        len(one.content) + len(one.reasoning) + sum(len(json.dumps(call.arguments)) for call in one.tool_calls)
        for one in messages
    )
    return said + (len(json.dumps(tools)) if tools else 0)
