"""The dialect of Anthropic's messages: bodies become calls, answers become bodies or streams of events. Pure.

Fields are read, left to the run or refused as in `chat`. A message of the user may hold results of tools, each of which
is a message of its own to an agent.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flexmarl.language.dialects import fields
from flexmarl.language.dialects.calls import CallAnswer, CallRefused, ModelCall, wrong
from flexmarl.language.dialects.fields import FieldRules
from flexmarl.language.messages import Message, ToolCall

UNHEEDED = frozenset(
    {
        "temperature", "top_p", "top_k", "thinking", "metadata", "service_tier", "cache_control", "speed",
        "inference_geo", "diagnostics", "user_profile_id", "workspace_id", "billing_policy",
    }
)  # fmt: skip
"""Fields that are read and change nothing: the run's agents say how they sample, and nobody else reads the rest."""
KEEP_THOUGHTS = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stop_sequences": (None, []), "container": (None,), "mcp_servers": (None, []), "output_format": (None,),
    "context_management": (None, {"edits": []}, KEEP_THOUGHTS), "compaction": (None,), "fallbacks": (None, []),
    "fallback_credit_token": (None,), "thread": (None,),
}  # fmt: skip
"""Fields that agents of runs cannot honour -> the values at which they ask for nothing."""
HONOURED = frozenset({"model", "messages", "system", "tools", "tool_choice", "max_tokens", "stream", "output_config"})
RULES = FieldRules(HONOURED, UNHEEDED, NEUTRAL)
"""Of sessions, whose runs say how agents sample."""
BLOCKS = {"user": "text or tool_result", "assistant": "text, tool_use or thinking"}
ERRORS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 405: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "api_error",
}  # fmt: skip
"""Status of a refusal -> its type; `invalid_request_error` for any other."""


def read(body: Any, rules: FieldRules = RULES) -> ModelCall:
    """Read a body. Raises CallRefused naming the field, the rule and a legal value."""
    call = read_count(body, rules)
    call.max_tokens = fields.limit(body, "max_tokens", "1024 for instance")
    if call.max_tokens is None:
        raise wrong("max_tokens", "is missing", "send a whole number from 1")
    call.stream = fields.flag(body, "stream")
    return call


def read_count(body: Any, rules: FieldRules = RULES) -> ModelCall:
    """Read a body whose tokens are to be counted: what its agent would read. Raises CallRefused."""
    body = fields.known(body, rules)
    config = body.get("output_config") or {}
    known = ("effort", "format")
    if not isinstance(config, Mapping) or any(config[name] is not None for name in config if name not in known):
        raise wrong("output_config", "agents of runs do not support this value", "leave out all but effort and format")
    tools = tuple(_tool(one, f"tools/{place}") for place, one in enumerate(fields.items(body, "tools", "")))
    given = fields.listed(body)
    system = body.get("system") or []
    first = (Message("system", fields.text(system, "system")),) if system else ()
    said = (one for place, message in enumerate(given) for one in _messages(message, f"messages/{place}"))
    messages = fields.asking((*first, *said), len(given) - 1)
    tools = tools if _may_call(body) else ()
    return ModelCall(
        model=fields.model(body, rules),
        messages=messages,
        tools=tools,
        structured=fields.structured(config.get("format"), "output_config/format", tools=bool(tools)),
        structured_field="output_config/format",
    )


def _may_call(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind not in (None, "auto", "none"):
        rule = 'leave it out or send {"type": "auto"} or {"type": "none"}'
        raise wrong("tool_choice", "agents of runs do not support this value", rule)
    return bool(kind != "none")


def _tool(given: Any, field: str) -> dict[str, Any]:
    """Return a tool as chat templates read it."""
    own = isinstance(given, Mapping) and given.get("type") in (None, "custom") and isinstance(given.get("name"), str)
    if not own or not isinstance(given.get("input_schema"), Mapping):
        raise wrong(field, "is not a tool of the program", 'send {"name": ..., "input_schema": {"type": "object"}}')
    function = {"name": given["name"], "parameters": given["input_schema"]}
    if isinstance(about := given.get("description"), str):
        function["description"] = about
    return {"type": "function", "function": function}


def _messages(given: Any, field: str) -> Sequence[Message]:
    """Return what one message of a body says: results of tools are messages of their own."""
    role = given.get("role") if isinstance(given, Mapping) else None
    if role not in ("user", "assistant", "system"):
        raise wrong(field, "has no known role", "role is one of user, assistant, system")
    content = given.get("content")
    if role == "system":
        return [Message("system", fields.text(content, f"{field}/content"))]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or (not blocks and role == "user"):
        raise wrong(f"{field}/content", "is neither a text nor blocks", f"send a text, or blocks of {BLOCKS[role]}")
    places = [(block, f"{field}/content/{place}") for place, block in enumerate(blocks)]
    return _asked(places) if role == "user" else [_said(places)]


def _asked(blocks: Sequence[tuple[Any, str]]) -> Sequence[Message]:
    messages: list[Message] = []
    for block, field in blocks:
        if _kind(block) == "tool_result":
            if not isinstance(call := block.get("tool_use_id"), str):
                raise wrong(f"{field}/tool_use_id", "is not a text", "send the id of the call that it answers")
            content = block.get("content") or ""
            messages.append(Message("tool", content and fields.text(content, f"{field}/content"), tool_call_id=call))
            continue
        words = _words(block, "text", field, "user")
        if messages and messages[-1].role == "user":
            words = f"{messages.pop().content}\n{words}"
        messages.append(Message("user", words))
    return messages


def _said(blocks: Sequence[tuple[Any, str]]) -> Message:
    words, thoughts, calls = [], [], []
    for block, field in blocks:
        match _kind(block):
            case "tool_use":
                calls.append(_call(block, field))
            case "thinking":
                thoughts.append(_words(block, "thinking", field, "assistant"))
            case _:
                words.append(_words(block, "text", field, "assistant"))
    return Message("assistant", "\n".join(words), "\n".join(thoughts), tuple(calls))


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, Mapping) else None


def _words(block: Any, kind: str, field: str, role: str) -> str:
    words = block.get(kind) if _kind(block) == kind else None
    if not isinstance(words, str):
        raise wrong(field, "is not a block that agents of runs support", f"send a block of {BLOCKS[role]}")
    return words


def _call(block: Mapping[str, Any], field: str) -> ToolCall:
    name, given, id = block.get("name"), block.get("input"), block.get("id")
    if not isinstance(name, str) or not isinstance(given, dict) or not isinstance(id, str):
        raise wrong(field, "is not a call of a tool", 'send {"type": "tool_use", "id": ..., "name": ..., "input": {}}')
    return ToolCall(name, given, id)


def whole(call: ModelCall, answer: CallAnswer) -> dict[str, Any]:
    """Return an answer in one piece."""
    message = _begun(call, answer)
    usage = {**message["usage"], "output_tokens": answer.tokens}
    return {
        **message,
        "content": _blocks(answer),
        "stop_reason": _finish(answer),
        "stop_sequence": answer.stopped_at,
        "usage": usage,
    }


def events(call: ModelCall, answer: CallAnswer) -> Iterator[bytes]:
    """Yield an answer as the events of a stream; they say the same as the whole."""
    stream = MessageEvents(call, answer)
    yield from stream.opened()
    yield from stream.ended(answer)


class MessageEvents:
    """The events of one answer, as it comes; they say the same as the whole. `first`: an answer that says nothing."""

    def __init__(self, call: ModelCall, first: CallAnswer) -> None:
        self._call, self._first = call, first
        self._done = 0
        self._kind, self._said = "", ""

    def opened(self) -> Iterator[bytes]:
        """Yield what stands in front of all words."""
        yield _event({"type": "message_start", "message": _begun(self._call, self._first)})

    def more(self, reasoning: str, content: str) -> Iterator[bytes]:
        """Yield thoughts and words that came."""
        for said in (Message("assistant", reasoning=reasoning), Message("assistant", content)):
            for block in _blocks(replace(self._first, message=said)):
                if self._kind not in ("", block["type"]):
                    yield from self._closed()
                yield from self._further(block)

    def ended(self, answer: CallAnswer) -> Iterator[bytes]:
        """Yield what has not been said of an answer, and its end."""
        for block in _blocks(answer)[self._done :]:
            known = {self._kind: block[self._kind].removeprefix(self._said)} if block["type"] == self._kind else {}
            yield from self._further({**block, **known})
            yield from self._closed()
        delta = {"stop_reason": _finish(answer), "stop_sequence": answer.stopped_at}
        yield _event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": answer.tokens}})
        yield _event({"type": "message_stop"})

    def failed(self, refused: CallRefused) -> Iterator[bytes]:
        """Yield why there is no whole answer."""
        yield _event(refusal(refused))

    def _further(self, block: dict[str, Any]) -> Iterator[bytes]:
        kind, index = block["type"], self._done
        empty, delta = _in_pieces(block)
        if not self._kind:
            self._kind = kind
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        words = str(block.get(kind, ""))
        if words or not self._said:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        self._said += words

    def _closed(self) -> Iterator[bytes]:
        if self._kind == "thinking":
            signed = {"type": "signature_delta", "signature": ""}
            yield _event({"type": "content_block_delta", "index": self._done, "delta": signed})
        yield _event({"type": "content_block_stop", "index": self._done})
        self._kind, self._said, self._done = "", "", self._done + 1


def _event(body: Mapping[str, Any]) -> bytes:
    return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode()


def _begun(call: ModelCall, answer: CallAnswer) -> dict[str, Any]:
    """Return an answer of which nothing has been said."""
    usage = {"input_tokens": answer.prompt_tokens, "output_tokens": 0}
    return {
        "id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": call.model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip


def _blocks(answer: CallAnswer) -> list[dict[str, Any]]:
    said, blocks = answer.message, []
    if said.reasoning:
        blocks.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
    if said.content.strip():  # its clients send no blank block back
        blocks.append({"type": "text", "text": said.content})
    calls = [{"type": "tool_use", "id": one.id, "name": one.name, "input": one.arguments} for one in said.tool_calls]
    return [*blocks, *calls]


def _in_pieces(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a block of which nothing has been said, and what is to be said."""
    kind = block["type"]
    if kind == "tool_use":
        return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    return {**block, kind: ""}, {"type": f"{kind}_delta", kind: block[kind]}


def _finish(answer: CallAnswer) -> str:
    if answer.finish == "length":
        return "max_tokens"
    if answer.stopped_at is not None:
        return "stop_sequence"
    return "tool_use" if answer.message.tool_calls else "end_turn"


def refusal(refused: CallRefused) -> dict[str, Any]:
    """Return the body of a refusal."""
    kind = ERRORS.get(refused.status, "invalid_request_error")
    # By these words its clients know that they have to send less.
    words = "prompt is too long: " if refused.code == "context_length_exceeded" else ""
    return {"type": "error", "error": {"type": kind, "message": f"{words}{refused.detail}"}}


def counted(tokens: int) -> dict[str, int]:
    """Return the answer to a count."""
    return {"input_tokens": tokens}
