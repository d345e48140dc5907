"""The dialect of OpenAI's chat completions: bodies become calls, answers become bodies or streams of events. Pure.

Every field is honoured, or is left to the run (`LEFT_TO_RUN`: who trains on what is sampled decides how), or has to be
at the value at which it says nothing, or is refused by name with a legal value.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flexmarl.language.messages import Message, Speaker, ToolCall
from workers.rollout.gateway.calls import CallAnswer, CallRefused, ProgramCall, wrong

LEFT_TO_RUN = frozenset(
    {
        "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "user", "metadata",
        "store", "service_tier", "parallel_tool_calls", "reasoning_effort", "verbosity", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention",
    }
)  # fmt: skip
"""Fields that are read and change nothing: the run's agents say how they sample, and nobody else reads the rest."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,), "function_call": (None, "none"), "functions": (None, []), "logprobs": (None, False),
    "modalities": (None, ["text"]), "n": (None, 1), "prediction": (None,), "response_format": (None, {"type": "text"}),
    "stop": (None, []), "tool_choice": (None, "auto", "none"), "top_logprobs": (None, 0), "web_search_options": (None,),
}  # fmt: skip
"""Fields that agents of runs cannot honour -> the values at which they ask for nothing."""
HONOURED = frozenset({"model", "messages", "tools", "max_tokens", "max_completion_tokens", "stream", "stream_options"})
SPEAKERS: dict[object, Speaker] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
}  # fmt: skip
KINDS = {401: "authentication_error", 403: "permission_error", 503: "server_error"}


def read(body: Any) -> ProgramCall:
    """Read a body. Raises CallRefused naming the field, the rule and a legal value."""
    if not isinstance(body, Mapping):
        raise CallRefused(400, "invalid_value", "The body is not a JSON object.")
    for name, value in body.items():
        if name in HONOURED or name in LEFT_TO_RUN:
            continue
        if name not in NEUTRAL:
            raise wrong(name, "is not known", f"known are {', '.join(sorted(HONOURED | LEFT_TO_RUN | NEUTRAL.keys()))}")
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in NEUTRAL[name]):
            rule = " or ".join(json.dumps(one) for one in NEUTRAL[name] if one is not None)
            raise wrong(name, "agents of runs do not support this value", f"leave it out{rule and f' or send {rule}'}")
    if not isinstance(body.get("model"), str):
        raise wrong("model", "is not a text", "send the name of a seat of the session")
    options = body.get("stream_options") or {}
    return ProgramCall(
        seat=body["model"],
        messages=_messages(body.get("messages")),
        tools=() if body.get("tool_choice") == "none" else _tools(body.get("tools")),
        max_tokens=_limit(body),
        stream=_flag(body, "stream"),
        usage_in_stream=isinstance(options, Mapping) and options.get("include_usage") is True,
    )


def _limit(body: Mapping[str, Any]) -> int | None:
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise wrong(name, "is not a whole number from 1", "send one, or leave it out")
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    if not isinstance(value := body.get(name) or False, bool):
        raise wrong(name, "is neither true nor false", "send true or false")
    return value


def _tools(given: Any) -> tuple[dict[str, Any], ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise wrong("tools", "is not a list", "send a list of functions, or leave it out")
    for place, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise wrong(f"tools/{place}", "is not a function", 'send {"type": "function", "function": {"name": ...}}')
    return tuple(given)


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise wrong("messages", "is not a list of messages", 'send [{"role": "user", "content": "..."}], for instance')
    messages = tuple(_message(one, f"messages/{place}") for place, one in enumerate(given))
    if messages[-1].role == "assistant":
        raise wrong(f"messages/{len(messages) - 1}", "is of the assistant", "end with a message of somebody else")
    return messages


def _message(given: Any, field: str) -> Message:
    role = SPEAKERS.get(given.get("role")) if isinstance(given, Mapping) and _hashable(given.get("role")) else None
    if role is None:
        raise wrong(field, "has no known role", f"role is one of {', '.join(map(str, SPEAKERS))}")
    calls = tuple(
        _call(one, f"{field}/tool_calls/{place}") for place, one in enumerate(_list(given, "tool_calls", field))
    )
    content = given.get("content")
    text = "" if content is None and role == "assistant" else _text(content, f"{field}/content")
    answers, thought = given.get("tool_call_id"), given.get("reasoning_content")
    if role == "tool" and not isinstance(answers, str):
        raise wrong(f"{field}/tool_call_id", "is not a text", "send the id of the call that it answers")
    reasoning = thought if role == "assistant" and isinstance(thought, str) else ""
    return Message(role, text, reasoning, calls, answers if role == "tool" else "")


def _hashable(value: object) -> bool:
    return isinstance(value, str)


def _list(given: Mapping[str, Any], name: str, field: str) -> Sequence[Any]:
    if not isinstance(found := given.get(name) or [], list):
        raise wrong(f"{field}/{name}", "is not a list", "send a list, or leave it out")
    return found


def _text(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if not parts or len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise wrong(field, "is not text", "send a text, or parts of the type text")
    return "\n".join(map(str, texts))


def _call(given: Any, field: str) -> ToolCall:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise wrong(field, "is not a call of a function", 'send {"id": ..., "type": "function", "function": {...}}')
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise wrong(f"{field}/function/arguments", "is not a JSON object in a text", "send what the agent said")
    return ToolCall(function["name"], arguments, str(given.get("id") or ""))


def whole(call: ProgramCall, answer: CallAnswer) -> dict[str, Any]:
    """Return an answer in one piece."""
    choice = {"index": 0, "message": _said(answer), "finish_reason": _finish(answer), "logprobs": None}
    return {**_head(call, answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def events(call: ProgramCall, answer: CallAnswer) -> Iterator[bytes]:
    """Yield an answer as the events of a stream; they say the same as the whole."""
    head, said = _head(call, answer, "chat.completion.chunk"), _said(answer)
    calls = [{"index": place, **one} for place, one in enumerate(said.pop("tool_calls", []))]
    deltas: list[dict[str, Any]] = [{"role": said.pop("role"), "content": ""}]
    deltas += [{name: text} for name, text in said.items() if text]
    deltas += [{"tool_calls": [one]} for one in calls]
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]})
    if call.usage_in_stream:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _head(call: ProgramCall, answer: CallAnswer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.made_at, "model": call.seat}


def _said(answer: CallAnswer) -> dict[str, Any]:
    message = answer.message
    said: dict[str, Any] = {"role": "assistant", "content": message.content or None}
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if not message.tool_calls:
        return said | {"content": message.content}
    functions = [(one.id, {"name": one.name, "arguments": json.dumps(one.arguments)}) for one in message.tool_calls]
    return said | {"tool_calls": [{"id": id, "type": "function", "function": one} for id, one in functions]}


def _finish(answer: CallAnswer) -> str:
    return "tool_calls" if answer.message.tool_calls and answer.finish == "stop" else answer.finish


def _usage(answer: CallAnswer) -> dict[str, int]:
    read, made = answer.prompt_tokens, answer.tokens
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def refusal(refused: CallRefused) -> dict[str, Any]:
    """Return the body of a refusal."""
    kind = KINDS.get(refused.status, "invalid_request_error")
    return {
        "error": {"message": refused.detail, "type": kind, "param": refused.field or None, "code": refused.code},
    }


def models(seats: Sequence[str], created: int) -> dict[str, Any]:
    """List the seats of a session."""
    return {"object": "list", "data": [model(seat, created) for seat in seats]}


def model(seat: str, created: int) -> dict[str, Any]:
    """Describe a seat."""
    return {"id": seat, "object": "model", "created": created, "owned_by": "flexmarl"}
