"""The dialect of OpenAI's chat completions: bodies become calls, answers become bodies or streams of events. Pure.

Every field is honoured, or is left to the run (`UNHEEDED`: who trains on what is sampled decides how), or has to be
at the value at which it says nothing, or is refused by name with a legal value.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flexmarl.language.dialects import fields
from flexmarl.language.dialects.calls import CallAnswer, CallRefused, ModelCall, wrong
from flexmarl.language.dialects.fields import FieldRules
from flexmarl.language.messages import Message, Speaker, ToolCall

UNHEEDED = frozenset(
    {
        "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "user", "metadata",
        "store", "service_tier", "parallel_tool_calls", "reasoning_effort", "verbosity", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention",
    }
)  # fmt: skip
"""Fields that are read and change nothing: the run's agents say how they sample, and nobody else reads the rest."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,), "function_call": (None, "none"), "functions": (None, []), "logprobs": (None, False),
    "modalities": (None, ["text"]), "n": (None, 1), "prediction": (None,),
    "stop": (None, []), "tool_choice": (None, "auto", "none"), "top_logprobs": (None, 0), "web_search_options": (None,),
}  # fmt: skip
"""Fields that agents of runs cannot honour -> the values at which they ask for nothing."""
HONOURED = frozenset(
    {"model", "messages", "tools", "max_tokens", "max_completion_tokens", "stream", "stream_options", "response_format"}
)
RULES = FieldRules(HONOURED, UNHEEDED, NEUTRAL)
"""Of sessions, whose runs say how agents sample."""
SPEAKERS: dict[object, Speaker] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
}  # fmt: skip
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def read(body: Any, rules: FieldRules = RULES) -> ModelCall:
    """Read a body. Raises CallRefused naming the field, the rule and a legal value."""
    body = fields.known(body, rules)
    options = body.get("stream_options") or {}
    tools = () if body.get("tool_choice") == "none" else _tools(body.get("tools"))
    shape = body.get("response_format")
    most = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    return ModelCall(
        model=fields.model(body, rules),
        messages=_messages(fields.listed(body)),
        tools=tools,
        max_tokens=fields.limit(body, most),
        stream=fields.flag(body, "stream"),
        usage_in_stream=isinstance(options, Mapping) and options.get("include_usage") is True,
        structured=fields.structured(shape, "response_format", within="json_schema", tools=bool(tools)),
        structured_field="response_format",
    )


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


def _messages(given: Sequence[Any]) -> tuple[Message, ...]:
    messages = tuple(_message(one, f"messages/{place}") for place, one in enumerate(given))
    return fields.asking(messages, len(given) - 1)


def _message(given: Any, field: str) -> Message:
    role = SPEAKERS.get(given.get("role")) if isinstance(given, Mapping) and _hashable(given.get("role")) else None
    if role is None:
        raise wrong(field, "has no known role", f"role is one of {', '.join(map(str, SPEAKERS))}")
    given_calls = fields.items(given, "tool_calls", field)
    calls = tuple(_call(one, f"{field}/tool_calls/{place}") for place, one in enumerate(given_calls))
    content = given.get("content")
    text = "" if content is None and role == "assistant" else fields.text(content, f"{field}/content")
    answers, thought = given.get("tool_call_id"), given.get("reasoning_content")
    if role == "tool" and not isinstance(answers, str):
        raise wrong(f"{field}/tool_call_id", "is not a text", "send the id of the call that it answers")
    reasoning = thought if role == "assistant" and isinstance(thought, str) else ""
    return Message(role, text, reasoning, calls, answers if role == "tool" else "")


def _hashable(value: object) -> bool:
    return isinstance(value, str)


def _call(given: Any, field: str) -> ToolCall:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise wrong(field, "is not a call of a function", 'send {"id": ..., "type": "function", "function": {...}}')
    arguments = fields.arguments(function.get("arguments"), f"{field}/function/arguments")
    return ToolCall(function["name"], arguments, str(given.get("id") or ""))


def whole(call: ModelCall, answer: CallAnswer) -> dict[str, Any]:
    """Return an answer in one piece."""
    finish = finish_of(answer.message, answer.finish)
    choice = {"index": 0, "message": said_by(answer.message), "finish_reason": finish, "logprobs": None}
    return {
        **_head(call, answer, "chat.completion"),
        "choices": [choice],
        "usage": usage(answer.prompt_tokens, answer.tokens),
    }


def events(call: ModelCall, answer: CallAnswer) -> Iterator[bytes]:
    """Yield an answer as the events of a stream; they say the same as the whole."""
    head, said = _head(call, answer, "chat.completion.chunk"), said_by(answer.message)
    calls = numbered(said.pop("tool_calls", []))
    deltas: list[dict[str, Any]] = [{"role": said.pop("role"), "content": ""}]
    deltas += [{name: text} for name, text in said.items() if text]
    deltas += [{"tool_calls": [one]} for one in calls]
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event(
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_of(answer.message, answer.finish)}]}
    )
    if call.usage_in_stream:
        yield _event({**head, "choices": [], "usage": usage(answer.prompt_tokens, answer.tokens)})
    yield b"data: [DONE]\n\n"


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _head(call: ModelCall, answer: CallAnswer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.made_at, "model": call.model}


def numbered(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return calls of tools as the deltas of a stream have them."""
    return [{"index": place, **one} for place, one in enumerate(calls)]


def said_by(message: Message) -> dict[str, Any]:
    """Return a message of an agent, whose calls of tools have ids."""
    said: dict[str, Any] = {"role": "assistant", "content": message.content or None}
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if not message.tool_calls:
        return said | {"content": message.content}
    functions = [(one.id, {"name": one.name, "arguments": json.dumps(one.arguments)}) for one in message.tool_calls]
    return said | {"tool_calls": [{"id": id, "type": "function", "function": one} for id, one in functions]}


def finish_of(message: Message, finish: str) -> str:
    """Return why a message ended: `finish` of its tokens, or the calls that it asks for."""
    return "tool_calls" if message.tool_calls and finish == "stop" else finish


def usage(read: int, made: int) -> dict[str, int]:
    """Return how many tokens were read and made."""
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def refusal(refused: CallRefused) -> dict[str, Any]:
    """Return the body of a refusal."""
    kind = KINDS.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
    return {
        "error": {"message": refused.detail, "type": kind, "param": refused.field or None, "code": refused.code},
    }


def models(seats: Sequence[str], created: int) -> dict[str, Any]:
    """List the seats of a session."""
    return {"object": "list", "data": [model(seat, created) for seat in seats]}


def model(seat: str, created: int) -> dict[str, Any]:
    """Describe a seat."""
    return {"id": seat, "object": "model", "created": created, "owned_by": "flexmarl"}
