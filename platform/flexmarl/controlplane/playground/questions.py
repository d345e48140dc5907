"""What a request to an agent asks, read strictly: pure.

Every field is honoured, or changes nothing and says so in the documentation, or has to be at the value at which it says
nothing, or is refused by name with a legal value. Bodies of chats, of responses and of messages are read by their
dialects; completions, and how to sample, are read here. Messages are rendered by the chat template of the agent's
model. An agent whose model has none gets one prompt: their texts joined by a blank, in order, with nothing that marks
who spoke; to be asked as its environment asks it, it gets its observation as the only message.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.language.dialects import chat, fields, messages, responses
from flexmarl.language.dialects.calls import CallRefused, ModelCall
from flexmarl.language.dialects.dialect import Dialect
from flexmarl.language.dialects.fields import FieldRules

MOST_TOKENS = 512
MOST_REPLIES = 8
"""Prompts times `n` of one request."""
MOST_STOPS = 4
MOST_STOP = 100
"""Characters of one of them."""
MOST_WORDS = 20_000
"""Characters of all prompts of a completion together."""
MOST_SAID = 500_000
"""Characters of all messages of a call and its tools: programs of tools say much before they ask."""

RANGES: dict[str, tuple[float, float, bool, type]] = {
    "top_p": (0, 1, False, float), "top_k": (0, 1_000_000, True, int), "min_p": (0, 1, True, float),
    "repetition_penalty": (0, 4, False, float),
}  # fmt: skip
"""Sampling parameter -> least and most value, whether the least one is legal, its type. All but top_p are vLLM's."""
SAMPLED = frozenset({"temperature", "seed", *RANGES, "allowed_words"})
"""How to sample; `allowed_words`, beyond all dialects: words that the reply may consist of, all of them when empty."""
PENALTIES: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0), "logit_bias": (None, {}), "presence_penalty": (None, 0),
}  # fmt: skip
COMPLETION = FieldRules(
    frozenset({"model", "prompt", "max_tokens", "n", "stop", "stream", "stream_options", "logprobs", "user"}) | SAMPLED,
    frozenset(),
    {
        "audio": (None,), "best_of": (None, 1), "echo": (None, False), "function_call": (None, "none"),
        "functions": (None, []), "metadata": (None, {}), "modalities": (None, ["text"]),
        "parallel_tool_calls": (None, True, False), "prediction": (None,), "reasoning_effort": (None,),
        "response_format": (None, {"type": "text"}), "service_tier": (None, "auto", "default"),
        "store": (None, False), "suffix": (None, ""), "tool_choice": (None, "none"), "tools": (None, []),
        "top_logprobs": (None, 0), "verbosity": (None,), "web_search_options": (None,), **PENALTIES,
    },
)  # fmt: skip
_AGENT = "name an agent as <run key>/<agent>"


def _served(rules: FieldRules, *names: str) -> FieldRules:
    """Return the rules of a dialect where the caller says how to sample."""
    penalties = {name: values for name, values in PENALTIES.items() if name in rules.unheeded}
    named = rules.honouring(SAMPLED | frozenset(names), penalties)
    return replace(named, models=_AGENT, unknown="unknown_parameter", unsupported="unsupported_parameter")


COMPLETIONS = _served(COMPLETION)
DIALECTS: dict[Dialect, FieldRules] = {
    chat: _served(chat.RULES, "n", "stop", "logprobs"),
    responses: _served(responses.RULES),
    messages: _served(messages.RULES, "stop_sequences"),
}
"""Dialect -> what is made of its fields here."""
Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A request that asks for something possible, so far as it can be told without the agent."""

    model: str
    call: ModelCall | None
    """What was said to the agent, and its tools; None of a completion."""
    prompts: tuple[Prompt, ...]
    """Of a completion; of a call the same words without who said them, for models without a chat template."""
    max_tokens: int | None
    temperature: float | None
    seed: int | None
    stop: tuple[str, ...]
    drawn: Mapping[str, float]
    """Sampling parameters of `RANGES` that were given."""
    allowed_words: tuple[str, ...] | None
    n: int = 1
    logprobs: bool = False
    stream: bool = False
    usage_in_stream: bool = False

    @property
    def structured(self) -> str:
        """What the reply must be; empty: anything."""
        return "" if self.call is None else self.call.structured

    @property
    def field(self) -> str:
        """The member of the body that holds what is said."""
        return "prompt" if self.call is None else "messages"


def read_completion(body: Any) -> Question:
    """Read a body of completions. Raises ValidationProblem naming the field, the rule and a legal value."""
    body = _known(body, COMPLETIONS)
    prompts, n = _prompts(body), _whole(body, "n", 1, MOST_REPLIES, 1)
    if n * len(prompts) > MOST_REPLIES:
        raise wrong(
            "n", f"{len(prompts)} prompts times n={n} are {n * len(prompts)} replies", f"{MOST_REPLIES} at most"
        )
    if sum(len(prompt) for prompt in prompts) > MOST_WORDS:
        raise wrong("prompt", "it is too long", f"at most {MOST_WORDS} characters")
    stream = _flag(body, "stream")
    return Question(
        model=_text(body, "model"),
        call=None,
        prompts=prompts,
        max_tokens=_whole(body, "max_tokens", 1, MOST_TOKENS, None),
        **_sampled(body, "stop"),
        n=n,
        logprobs=_whole(body, "logprobs", 0, 1, None) is not None,
        stream=stream,
        usage_in_stream=_stream_options(body, stream),
    )


def read_call(body: Any, dialect: Dialect) -> Question:
    """Read a body of a dialect. Raises ValidationProblem naming the field, the rule and a legal value."""
    try:
        call = dialect.read(body, DIALECTS[dialect])
    except CallRefused as refused:
        raise _problem(refused) from refused
    if call.follows:
        detail = "previous_response_id: responses are not kept here; leave it out and send the whole conversation."
        raise _problem(CallRefused(400, "previous_response_not_found", detail, "previous_response_id"))
    question = _asked(body, call, "stop_sequences" if dialect is messages else "stop")
    if dialect is not chat:
        return question
    return replace(
        question,
        n=_whole(body, "n", 1, MOST_REPLIES, 1),
        logprobs=_flag(body, "logprobs"),
        usage_in_stream=_stream_options(body, call.stream),
    )


def read_count(body: Any) -> Question:
    """Read a body of messages whose tokens are to be counted. Raises ValidationProblem."""
    try:
        call = messages.read_count(body, DIALECTS[messages])
    except CallRefused as refused:
        raise _problem(refused) from refused
    return _asked(body, call, "stop_sequences")


def _asked(body: Mapping[str, Any], call: ModelCall, stops: str) -> Question:
    said = " ".join(one.content for one in call.messages if one.content)
    thoughts = sum(len(one.reasoning) + len(json.dumps(one.for_template())) for one in call.messages if one.tool_calls)
    if len(said) + thoughts + len(json.dumps(call.tools)) > MOST_SAID:
        rule = f"at most {MOST_SAID} characters with all tools"
        raise wrong("messages", "they are too long", rule, "context_length_exceeded")
    return Question(
        model=call.model,
        call=call,
        prompts=(said,),
        max_tokens=call.max_tokens,
        **_sampled(body, stops),
        stream=call.stream,
    )


def _sampled(body: Mapping[str, Any], stops: str) -> dict[str, Any]:
    """Read how to sample, and the texts of the field `stops` that end a reply."""
    return {
        "temperature": _temperature(body),
        "seed": _whole(body, "seed", -(2**63), 2**63 - 1, None),
        "stop": _stops(body, stops),
        "drawn": {name: value for name in RANGES if (value := _parameter(body, name)) is not None},
        "allowed_words": _words(body, "allowed_words"),
    }


def _known(body: Any, rules: FieldRules) -> Mapping[str, Any]:
    try:
        return fields.known(body, rules)
    except CallRefused as refused:
        raise _problem(refused) from refused


def _problem(refused: CallRefused) -> ValidationProblem:
    errors = [FieldError(f"/{refused.field}", refused.code, refused.detail)] if refused.field else []
    return ValidationProblem(refused.detail, errors=errors)


def wrong(field: str, fact: str, rule: str, code: str = "invalid_value") -> ValidationProblem:
    """Make the refusal of a field: what is wrong with it, and what would not be."""
    detail = f"{field}: {fact}; {rule}."
    return ValidationProblem(detail, errors=[FieldError(f"/{field}", code, detail, rule)])


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


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise wrong(name, "is missing", _AGENT)
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


def _stops(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name)
    texts = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) and 0 < len(one) <= MOST_STOP for one in texts):
        raise wrong(name, "is not a text or a list of texts", f"send texts of 1 to {MOST_STOP} characters")
    if len(texts) > MOST_STOPS:
        raise wrong(name, f"has {len(texts)} texts", f"send at most {MOST_STOPS}")
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
