"""The dialect of OpenAI's responses: bodies become calls, answers become bodies or streams of events. Pure.

Fields are read, left to the run or refused as in `chat`. What an agent says is one message to its template and several
items here: a thought, words and calls that stand behind each other are put together again.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flexmarl.language.messages import Message, Speaker, ToolCall
from workers.rollout.gateway import chat, fields
from workers.rollout.gateway.calls import CallAnswer, CallRefused, ProgramCall, wrong

LEFT_TO_RUN = frozenset(
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
ID = "resp_"


def read(body: Any) -> ProgramCall:
    """Read a body. Raises CallRefused naming the field, the rule and a legal value."""
    body = fields.known(body, HONOURED, LEFT_TO_RUN, NEUTRAL)
    _only_words(body.get("text"))
    tools = tuple(_tool(one, f"tools/{place}") for place, one in enumerate(fields.items(body, "tools", "")))
    instructions = body.get("instructions") or ""
    first = (Message("system", fields.text(instructions, "instructions")),) if instructions else ()
    said = {name: otherwise if body.get(name) is None else body[name] for name, otherwise in SAID_AGAIN.items()}
    return ProgramCall(
        seat=fields.seat(body),
        messages=(*first, *_messages(body.get("input"))),
        tools=() if body.get("tool_choice") == "none" else tools,
        max_tokens=fields.limit(body, "max_output_tokens"),
        stream=fields.flag(body, "stream"),
        instructed=bool(first),
        follows=_previous(body.get("previous_response_id")),
        said_again=said,
    )


def _only_words(given: Any) -> None:
    config = given or {}
    shape = config.get("format") if isinstance(config, Mapping) else config
    if shape not in (None, {"type": "text"}):
        rule = 'leave it out or send {"type": "text"}, and say in words what the reply has to look like'
        raise wrong("text/format", "agents of runs do not support this value", rule)


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
    raise wrong(field, "is no item that agents of runs read", f"send the item itself, of the type {ITEMS}")


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


def whole(call: ProgramCall, answer: CallAnswer) -> dict[str, Any]:
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


def events(call: ProgramCall, answer: CallAnswer) -> Iterator[bytes]:
    """Yield an answer as the events of a stream; they say the same as the whole."""
    for number, event in enumerate(_said(call, answer)):
        body = {**event, "sequence_number": number}
        yield f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode()


def _said(call: ProgramCall, answer: CallAnswer) -> Iterator[dict[str, Any]]:
    begun, found = _begun(call, answer), whole(call, answer)
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(found["output"]):
        at = {"item_id": item["id"], "output_index": index}
        hidden = "arguments" if item["type"] == "function_call" else "content"
        empty = {**item, "status": "in_progress", hidden: "" if hidden == "arguments" else []}
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        yield from _arguments(item, at) if hidden == "arguments" else _parts(item, at)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{found['status']}", "response": found}


def _arguments(item: Mapping[str, Any], at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    said = item["arguments"]
    yield {"type": "response.function_call_arguments.delta", **at, "delta": said}
    yield {"type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": said}


def _parts(item: Mapping[str, Any], at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, part in enumerate(item["content"]):
        where, kind = {**at, "content_index": index}, f"response.{part['type']}"
        more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
        yield {"type": f"{kind}.delta", **where, "delta": part["text"], **more}
        yield {"type": f"{kind}.done", **where, "text": part["text"], **more}
        yield {"type": "response.content_part.done", **where, "part": part}


def _begun(call: ProgramCall, answer: CallAnswer) -> dict[str, Any]:
    """Return an answer of which nothing has been said. How it was sampled is the run's to say."""
    return {
        **call.said_again, "id": f"{ID}{answer.id}", "object": "response", "created_at": answer.made_at,
        "model": call.seat, "status": "in_progress", "error": None, "incomplete_details": None, "background": False,
        "output": [], "temperature": None, "top_p": None, "text": {"format": {"type": "text"}},
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
