"""What a request in OpenAI's dialect asks, read strictly: pure.

Every field is honoured, or has to be at the value at which it says nothing, or is refused by name with a legal value;
none is ignored. Messages of a chat are rendered by the chat template of the agent's model. An agent whose model has
none gets one prompt: their texts joined by a blank, in order, with nothing that marks who spoke; to be asked as its
environment asks it, it gets its observation as the only message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.language.messages import Message, Speaker

MOST_TOKENS = 512
MOST_REPLIES = 8
"""Prompts times `n` of one request."""
MOST_STOPS = 4
MOST_STOP = 100
"""Characters of one of them."""
MOST_WORDS = 20_000
"""Characters of all prompts together."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,), "best_of": (None, 1), "echo": (None, False), "frequency_penalty": (None, 0),
    "function_call": (None, "none"), "functions": (None, []), "logit_bias": (None, {}), "metadata": (None, {}),
    "modalities": (None, ["text"]), "parallel_tool_calls": (None, True, False), "prediction": (None,),
    "presence_penalty": (None, 0), "reasoning_effort": (None,), "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"), "store": (None, False), "suffix": (None, ""),
    "tool_choice": (None, "none"), "tools": (None, []), "top_logprobs": (None, 0),
    "verbosity": (None,), "web_search_options": (None,),
}  # fmt: skip
"""Fields of OpenAI's that agents of runs cannot honour -> the values at which they ask for nothing."""
COMMON = {"model", "max_tokens", "n", "seed", "stop", "stream", "stream_options", "temperature", "logprobs", "user"}
RANGES: dict[str, tuple[float, float, bool, type]] = {
    "top_p": (0, 1, False, float), "top_k": (0, 1_000_000, True, int), "min_p": (0, 1, True, float),
    "repetition_penalty": (0, 4, False, float),
}  # fmt: skip
"""Sampling parameter -> least and most value, whether the least one is legal, its type. All but top_p are vLLM's."""
COMMON |= RANGES.keys()
OURS = {"allowed_words"}
"""Beyond OpenAI's: words that the reply may consist of, all of them when empty."""
CHAT = COMMON | OURS | {"messages", "max_completion_tokens"}
COMPLETION = COMMON | OURS | {"prompt"}
Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A request that asks for something possible, so far as it can be told without the agent."""

    model: str
    chat: bool
    prompts: tuple[Prompt, ...]
    messages: tuple[Message, ...]
    """Of a chat: who said what, for models with a chat template; `prompts` is the same without the speakers."""
    max_tokens: int | None
    temperature: float | None
    seed: int | None
    stop: tuple[str, ...]
    drawn: Mapping[str, float]
    """Sampling parameters of `RANGES` that were given."""
    allowed_words: tuple[str, ...] | None
    n: int
    logprobs: bool
    stream: bool
    usage_in_stream: bool


def read(body: Any, *, chat: bool) -> Question:
    """Read a body. Raises ValidationProblem naming the field, the rule and a legal value."""
    if not isinstance(body, Mapping):
        raise ValidationProblem("The body is not a JSON object.")
    _known(body, CHAT if chat else COMPLETION)
    messages = _messages(body) if chat else ()
    prompts = (" ".join(one.content for one in messages if one.content),) if chat else _prompts(body)
    n = _whole(body, "n", 1, MOST_REPLIES, 1)
    if n * len(prompts) > MOST_REPLIES:
        raise wrong(
            "n", f"{len(prompts)} prompts times n={n} are {n * len(prompts)} replies", f"{MOST_REPLIES} at most"
        )
    if sum(len(prompt) for prompt in prompts) > MOST_WORDS:
        raise wrong("messages" if chat else "prompt", "it is too long", f"at most {MOST_WORDS} characters")
    stream = _flag(body, "stream")
    return Question(
        model=_text(body, "model"),
        chat=chat,
        prompts=prompts,
        messages=messages,
        max_tokens=_limit(body, chat),
        temperature=_temperature(body),
        seed=_whole(body, "seed", -(2**63), 2**63 - 1, None),
        stop=_stops(body),
        drawn={name: value for name in RANGES if (value := _parameter(body, name)) is not None},
        allowed_words=_words(body, "allowed_words"),
        n=n,
        logprobs=_flag(body, "logprobs") if chat else _whole(body, "logprobs", 0, 1, None) is not None,
        stream=stream,
        usage_in_stream=_stream_options(body, stream),
    )


def wrong(field: str, fact: str, rule: str, code: str = "invalid_value") -> ValidationProblem:
    """Make the refusal of a field: what is wrong with it, and what would not be."""
    detail = f"{field}: {fact}; {rule}."
    return ValidationProblem(detail, errors=[FieldError(f"/{field}", code, detail, rule)])


def _known(body: Mapping[str, Any], honoured: set[str]) -> None:
    for name, value in body.items():
        if name in honoured:
            continue
        if name not in NEUTRAL:
            raise wrong(name, "is not supported", f"supported are {', '.join(sorted(honoured))}", "unknown_parameter")
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in NEUTRAL[name]):
            neutral = NEUTRAL[name][-1]
            rule = "omit it" if neutral is None else f"omit it or set {neutral!r}"
            raise wrong(name, "agents of runs do not support it", rule, "unsupported_parameter")


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    messages = body.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise wrong("messages", "is not a list of messages", 'such as [{"role": "user", "content": "hear ba"}]')
    return tuple(Message(*_message(message, place)) for place, message in enumerate(messages))


def _message(message: Any, place: int) -> tuple[Speaker, str]:
    field = f"messages/{place}"
    if not isinstance(message, Mapping) or message.get("role") not in {"system", "developer", "user", "assistant"}:
        raise wrong(field, "has no known role", "role is system, developer, user or assistant")
    role: Speaker = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content")
    if isinstance(content, str):
        return role, content.strip()
    parts = content if isinstance(content, Sequence) else []
    if not parts or not all(
        isinstance(p, Mapping) and p.get("type") == "text" and _is_text(p.get("text")) for p in parts
    ):
        raise wrong(f"{field}/content", "is not text", "send a text, or parts of the type text")
    return role, " ".join(part["text"].strip() for part in parts)


def _prompts(body: Mapping[str, Any]) -> tuple[Prompt, ...]:
    given = body.get("prompt")
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Sequence) and given:
        if all(isinstance(one, str) for one in given):
            return tuple(given)
        if _are_ids(given):
            return (tuple(given),)
        if all(isinstance(one, Sequence) and one and _are_ids(one) for one in given):
            return tuple(tuple(one) for one in given)
    raise wrong(
        "prompt", "is not a prompt", "send a text, a list of texts, a list of token ids or a list of such lists"
    )


def _are_ids(values: Sequence[Any]) -> bool:
    return all(isinstance(one, int) and not isinstance(one, bool) for one in values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise wrong(name, "is missing", "name an agent as <run key>/<agent>")
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, f"{value!r} is not true or false", "set true or false")
    return bool(value)


def _whole(body: Mapping[str, Any], name: str, low: int, high: int, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(name, f"{value!r} is not a whole number from {low} to {high}", f"set {default or high}")
    return value


def _limit(body: Mapping[str, Any], chat: bool) -> int | None:
    name = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    limit: int | None = _whole(body, name, 1, MOST_TOKENS, None)
    return limit


def _temperature(body: Mapping[str, Any]) -> float | None:
    value = body.get("temperature")
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 2:
        raise wrong(
            "temperature", f"{value!r} is not a number from 0 to 2", "0 takes the likeliest token, 1 draws as trained"
        )
    return float(value)


def _parameter(body: Mapping[str, Any], name: str) -> float | None:
    value, (least, most, itself, kind) = body.get(name), RANGES[name]
    if value is None:
        return None
    number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or (value == least and not itself):
        what = "a whole number" if kind is int else "a number"
        rule = f"{what} {'from' if itself else 'above'} {least} {'to' if itself else 'and at most'} {most}"
        raise wrong(name, f"{value!r} is not {rule}", f"set {rule}")
    return float(value)


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    texts = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) and 0 < len(one) <= MOST_STOP for one in texts):
        raise wrong("stop", "is not a text or a list of texts", f"send texts of 1 to {MOST_STOP} characters")
    if len(texts) > MOST_STOPS:
        raise wrong("stop", f"has {len(texts)} texts", f"send at most {MOST_STOPS}")
    return tuple(texts)


def _words(body: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = body.get(name)
    if value is None:
        return None
    words = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else (None,)
    if not all(isinstance(word, str) and word and word.split() == [word] for word in words):
        raise wrong(name, "is not a list of words", "send single words of the agent, without spaces")
    return words


def _stream_options(body: Mapping[str, Any], stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    known = {"include_usage", "include_obfuscation"}
    if not isinstance(options, Mapping) or set(options) - known or not stream:
        raise wrong("stream_options", "does not fit", 'with "stream": true send {"include_usage": true} or nothing')
    return bool(options.get("include_usage"))
