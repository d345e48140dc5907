"""The dialect of OpenAI's responses: bodies become calls, answers become bodies or streams of events. Pure.

Fields are read, left to the run or refused as in `chat`. What an agent says is one message to its template and several
items here: a thought, words and calls that stand behind each other are put together again.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flexmarl.language.dialects import chat, fields
from flexmarl.language.dialects.calls import CallAnswer, CallRefused, ModelCall, wrong
from flexmarl.language.dialects.fields import FieldRules
from flexmarl.language.messages import Message, Speaker, ToolCall

UNHEEDED = frozenset(
    {
        "temperature", "top_p", "reasoning", "metadata", "store", "service_tier", "parallel_tool_calls", "user",
        "max_tool_calls", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
        "stream_options", "client_metadata",
    }
)  # fmt: skip
"""Fields that are read and change nothing: the run's agents say how they sample, and nobody else reads the rest."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "access_programs": (None,), "background": (None, False), "background_options": (None,),
    "context_management": (None, []), "conversation": (None,), "image": (None,),
    "include": (None, [], ["reasoning.encrypted_content"]), "moderation": (None,), "prompt": (None,),
    "tool_choice": (None, "auto", "none"), "top_logprobs": (None, 0), "truncation": (None, "disabled"),
}  # fmt: skip
"""Fields that agents of runs cannot honour -> the values at which they ask for nothing. Thoughts come in the open."""
HONOURED = frozenset(
    {"model", "input", "instructions", "tools", "max_output_tokens", "stream", "previous_response_id", "text"}
)
RULES = FieldRules(HONOURED, UNHEEDED, NEUTRAL)
"""Of sessions, whose runs say how agents sample."""
SPEAKERS: dict[str, Speaker] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
}  # fmt: skip
ITEMS = "message, function_call, function_call_output or reasoning"
WORDS = ("input_text", "output_text", "text")
"""Kinds of parts that are words."""
SAID_AGAIN: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "previous_response_id": None, "tool_choice": "auto", "tools": [],
}  # fmt: skip
"""Fields of a body that its answer repeats -> what they are where the body leaves them out."""
PLAIN_TEXT: dict[str, Any] = {"format": {"type": "text"}}
ID = "resp_"


def read(body: Any, rules: FieldRules = RULES) -> ModelCall:
    """Read a body. Raises CallRefused naming the field, the rule and a legal value."""
    body = fields.known(body, rules)
    tools = tuple(_tool(one, f"tools/{place}") for place, one in enumerate(fields.items(body, "tools", "")))
    instructions = body.get("instructions") or ""
    first = (Message("system", fields.text(instructions, "instructions")),) if instructions else ()
    if body.get("tool_choice") == "none":
        tools = ()
    structured = _format(body.get("text"), tools=bool(tools))
    said = {name: otherwise if body.get(name) is None else body[name] for name, otherwise in SAID_AGAIN.items()}
    return ModelCall(
        model=fields.model(body, rules),
        messages=(*first, *_messages(body.get("input"))),
        tools=tools,
        max_tokens=fields.limit(body, "max_output_tokens"),
        stream=fields.flag(body, "stream"),
        instructed=bool(first),
        follows=_previous(body.get("previous_response_id")),
        structured=structured,
        structured_field="text/format",
        said_again=said | ({"text": {"format": body["text"]["format"]}} if structured else {}),
    )


def _format(given: Any, *, tools: bool) -> str:
    """Return what a reply must be. Raises CallRefused."""
    config = given or {}
    shape = config.get("format") if isinstance(config, Mapping) else config
    return fields.structured(shape, "text/format", tools=tools)


def _previous(given: Any) -> str:
    """Return the id of the answer that a call goes on from; empty where it brings its whole history."""
    if given is not None and not isinstance(given, str):
        raise wrong("previous_response_id", "is not a text", "send the id of the last response, or leave it out")
    return (given or "").removeprefix(ID)


def _tool(given: Any, field: str) -> dict[str, Any]:
    """Return a tool as chat templates read it."""
    own = isinstance(given, Mapping) and given.get("type") == "function" and isinstance(given.get("name"), str)
    if not own or not isinstance(given.get("parameters") or {}, Mapping):
        raise wrong(field, "is not a function", 'send {"type": "function", "name": ..., "parameters": {...}}')
    function = {name: given[name] for name in ("name", "description", "parameters") if given.get(name) is not None}
    return {"type": "function", "function": function}


def _messages(given: Any) -> tuple[Message, ...]:
    if isinstance(given, str) and given:
        return (Message("user", given),)
    if not isinstance(given, list) or not given:
        raise wrong("input", "is neither a text nor a list of items", f"send a text, or items of the type {ITEMS}")
    messages: list[Message] = []
    open_for = ""
    for place, item in enumerate(given):
        message, kind = _item(item, f"input/{place}")
        if kind in OPEN_FOR.get(open_for, ()):
            message = _joined(messages.pop(), message)
        messages.append(message)
        open_for = kind
    return fields.asking(tuple(messages), len(given) - 1, "input")


OPEN_FOR = {
    "reasoning": ("reasoning", "assistant", "function_call"), "assistant": ("function_call",),
    "function_call": ("function_call",),
}  # fmt: skip
"""Kind of an item -> kinds that say more of the same message right behind it."""


def _joined(first: Message, more: Message) -> Message:
    return replace(
        more,
        content=first.content or more.content,
        reasoning="\n".join(filter(None, (first.reasoning, more.reasoning))),
        tool_calls=(*first.tool_calls, *more.tool_calls),
    )


def _item(given: Any, field: str) -> tuple[Message, str]:
    """Return what an item says, and its kind: its type, and of a message who speaks."""
    if not isinstance(given, Mapping):
        raise wrong(field, "is not an item", f"send items of the type {ITEMS}")
    match given.get("type") or "message":
        case "message":
            role = given.get("role")
            speaker = SPEAKERS.get(role) if isinstance(role, str) else None
            if speaker is None:
                raise wrong(field, "has no known role", f"role is one of {', '.join(SPEAKERS)}")
            return Message(speaker, fields.text(given.get("content"), f"{field}/content", WORDS)), speaker
        case "function_call":
            return Message("assistant", tool_calls=(_call(given, field),)), "function_call"
        case "function_call_output":
            if not isinstance(call := given.get("call_id"), str):
                raise wrong(f"{field}/call_id", "is not a text", "send the id of the call that it answers")
            output = given.get("output")
            words = output and fields.text(output, f"{field}/output", WORDS)
            return Message("tool", words or "", tool_call_id=call), "function_call_output"
        case "reasoning":
            return Message("assistant", reasoning=_thought(given, field)), "reasoning"
    raise wrong(field, "is not an item that agents of runs support", f"send the item itself, of the type {ITEMS}")


def _call(given: Mapping[str, Any], field: str) -> ToolCall:
    name, call = given.get("name"), given.get("call_id")
    if not isinstance(name, str) or not isinstance(call, str):
        rule = 'send {"type": "function_call", "call_id": ..., "name": ..., "arguments": "{}"}'
        raise wrong(field, "is not a call of a function", rule)
    return ToolCall(name, fields.arguments(given.get("arguments"), f"{field}/arguments"), call)


def _thought(given: Mapping[str, Any], field: str) -> str:
    """Return a thought that comes in the open; what is hidden or summed up is none of the agent's words."""
    parts = fields.items(given, "content", field)
    return fields.text(parts, f"{field}/content", ("reasoning_text",)) if parts else ""


def whole(call: ModelCall, answer: CallAnswer) -> dict[str, Any]:
    """Return an answer in one piece."""
    cut_off = answer.finish == "length"
    read, made = answer.prompt_tokens, answer.tokens
    usage = {
        "input_tokens": read, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": made, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": read + made,
    }  # fmt: skip
    return {
        **_begun(call, answer),
        "status": "incomplete" if cut_off else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
        "completed_at": None if cut_off else answer.made_at,
        "output": _items(answer),
        "usage": usage,
    }


def events(call: ModelCall, answer: CallAnswer) -> Iterator[bytes]:
    """Yield an answer as the events of a stream; they say the same as the whole."""
    stream = ResponseEvents(call, answer)
    yield from stream.opened()
    yield from stream.ended(answer)


class ResponseEvents:
    """The events of one answer, as it comes; they say the same as the whole. `first`: an answer that says nothing."""

    def __init__(self, call: ModelCall, first: CallAnswer) -> None:
        self._call, self._first = call, first
        self._sent = self._done = 0
        self._open: _OpenItem | None = None

    def opened(self) -> Iterator[bytes]:
        """Yield what stands in front of all words."""
        begun = _begun(self._call, self._first)
        yield self._event({"type": "response.created", "response": begun})
        yield self._event({"type": "response.in_progress", "response": begun})

    def more(self, reasoning: str, content: str) -> Iterator[bytes]:
        """Yield thoughts and words that came."""
        message = Message("assistant", reasoning=reasoning) if reasoning else None
        for said in filter(None, (message, Message("assistant", content) if content else None)):
            item = _items(replace(self._first, message=said))[0]
            if self._open is not None and self._open.item["id"] != item["id"]:
                yield from self._events(self._open.closed(self._open.whole()))
                self._close()
            if self._open is None:
                self._open = _OpenItem(item, self._done)
                yield from self._events(self._open.opened())
            yield from self._events(self._open.more(_words(item)))

    def ended(self, answer: CallAnswer) -> Iterator[bytes]:
        """Yield what has not been said of an answer, and its end."""
        found = whole(self._call, answer)
        for item in found["output"][self._done :]:
            if self._open is None:
                self._open = _OpenItem(item, self._done)
                yield from self._events(self._open.opened())
            yield from self._events(self._open.more(_words(item).removeprefix(self._open.said)))
            yield from self._events(self._open.closed(item))
            self._close()
        yield self._event({"type": f"response.{found['status']}", "response": found})

    def failed(self, refused: CallRefused) -> Iterator[bytes]:
        """Yield why there is no whole answer."""
        error = refusal(refused)["error"]
        yield self._event({"type": "error", **error, "error": error})

    def _close(self) -> None:
        self._open, self._done = None, self._done + 1

    def _events(self, bodies: Iterator[dict[str, Any]]) -> Iterator[bytes]:
        yield from map(self._event, bodies)

    def _event(self, event: Mapping[str, Any]) -> bytes:
        body = {**event, "sequence_number": self._sent}
        self._sent += 1
        return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode()


def _words(item: Mapping[str, Any]) -> str:
    """Return what an item says."""
    return str(item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


class _OpenItem:
    """An item of which something may have been said. A message and a thought have one part each."""

    def __init__(self, item: Mapping[str, Any], index: int) -> None:
        self.item, self.said = item, ""
        self._at = {"item_id": item["id"], "output_index": index}
        self._index = index
        self._call = item["type"] == "function_call"
        self._part = {} if self._call else {**item["content"][0], "text": ""}
        self._where = {**self._at, "content_index": 0}
        self._more: dict[str, Any] = {"logprobs": []} if self._part.get("type") == "output_text" else {}

    def opened(self) -> Iterator[dict[str, Any]]:
        empty: dict[str, Any] = {"arguments": ""} if self._call else {"content": []}
        item = {**self.item, "status": "in_progress", **empty}
        yield {"type": "response.output_item.added", "output_index": self._index, "item": item}
        if not self._call:
            yield {"type": "response.content_part.added", **self._where, "part": self._part}

    def more(self, words: str) -> Iterator[dict[str, Any]]:
        if self.said and not words:
            return
        self.said += words
        if self._call:
            yield {"type": "response.function_call_arguments.delta", **self._at, "delta": words}
        else:
            yield {"type": f"response.{self._part['type']}.delta", **self._where, "delta": words, **self._more}

    def whole(self) -> dict[str, Any]:
        """Return the item as if it ended with what has been said."""
        return {**self.item, "content": [{**self._part, "text": self.said}]}

    def closed(self, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if self._call:
            said = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **self._at, **said}
        else:
            [part] = item["content"]
            yield {"type": f"response.{part['type']}.done", **self._where, "text": part["text"], **self._more}
            yield {"type": "response.content_part.done", **self._where, "part": part}
        yield {"type": "response.output_item.done", "output_index": self._index, "item": item}


def _begun(call: ModelCall, answer: CallAnswer) -> dict[str, Any]:
    """Return an answer of which nothing has been said. How it was sampled is the run's to say."""
    return {
        "text": PLAIN_TEXT, **call.said_again, "id": f"{ID}{answer.id}", "object": "response",
        "created_at": answer.made_at, "model": call.model, "status": "in_progress", "error": None,
        "incomplete_details": None, "background": False, "output": [], "temperature": None, "top_p": None,
        "truncation": "disabled", "usage": None,
    }  # fmt: skip


def _items(answer: CallAnswer) -> list[dict[str, Any]]:
    message, items = answer.message, []
    if message.reasoning:
        thought = [{"type": "reasoning_text", "text": message.reasoning}]
        item = {"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": thought, "status": "completed"}
        items.append(item)
    if message.content.strip() or not message.tool_calls:  # who sends it all back sends a message of the agent back
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        status = "incomplete" if answer.finish == "length" else "completed"
        item = {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "content": [part], "status": status}
        items.append(item)
    for place, one in enumerate(message.tool_calls):
        said = {"call_id": one.id, "name": one.name, "arguments": json.dumps(one.arguments)}
        items.append({"id": f"fc_{answer.id}_{place}", "type": "function_call", **said, "status": "completed"})
    return items


def refusal(refused: CallRefused) -> dict[str, Any]:
    """Return the body of a refusal."""
    body = chat.refusal(refused)
    if refused.field == "messages":  # what the agent was to read, in the words of no dialect
        body["error"]["param"] = "input"
    return body
