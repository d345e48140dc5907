"""What the dialects have in common: fields of bodies, and how a wrong one is refused by name. Pure."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from flexmarl.contracts.specification.sampling import JsonOutput
from flexmarl.contracts.structured import fault_of
from flexmarl.language.dialects.calls import CallRefused, wrong
from flexmarl.language.messages import Message


@dataclass(frozen=True, slots=True)
class FieldRules:
    """What a door makes of the fields of bodies: each is in one of the three, or is refused by name."""

    honoured: frozenset[str]
    unheeded: frozenset[str]
    """Read, and change nothing."""
    neutral: Mapping[str, tuple[Any, ...]]
    """Fields that agents of runs cannot honour -> the values at which they ask for nothing."""
    models: str = "send the name of a seat of the session"
    """What `model` has to be."""
    unknown: str = "invalid_value"
    unsupported: str = "invalid_value"
    """Codes of refusals: of a field that no list has, and of a value that is not neutral."""

    def honouring(self, names: Collection[str], neutral: Mapping[str, tuple[Any, ...]]) -> Self:
        """Return the same rules with more fields honoured, and others that have to be neutral."""
        honoured = self.honoured | frozenset(names)
        neutrals = {name: values for name, values in {**self.neutral, **neutral}.items() if name not in honoured}
        return replace(self, honoured=honoured, unheeded=self.unheeded - honoured - set(neutrals), neutral=neutrals)


def known(body: Any, rules: FieldRules) -> Mapping[str, Any]:
    """Return a body of which each field is read, or says nothing. Raises CallRefused."""
    if not isinstance(body, Mapping):
        raise CallRefused(400, "invalid_value", "The body is not a JSON object.")
    neutral = rules.neutral
    for name, value in body.items():
        if name in rules.honoured or name in rules.unheeded:
            continue
        if name not in neutral:
            names = sorted({*rules.honoured, *rules.unheeded, *neutral})
            raise wrong(name, "is not known", f"known are {', '.join(names)}", rules.unknown)
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral[name]):
            named = " or ".join(json.dumps(one) for one in neutral[name] if one is not None)
            rule = f"leave it out{named and f' or send {named}'}"
            raise wrong(name, "agents of runs do not support this value", rule, rules.unsupported)
    return body


def model(body: Mapping[str, Any], rules: FieldRules) -> str:
    """Return who is asked. Raises CallRefused."""
    if not isinstance(name := body.get("model"), str):
        raise wrong("model", "is not a text", rules.models)
    return name


def limit(body: Mapping[str, Any], name: str, otherwise: str = "or leave it out") -> int | None:
    """Return a number of tokens, None where there is none. Raises CallRefused."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise wrong(name, "is not a whole number from 1", f"send one, {otherwise}")
    return value


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a flag, which is false where it is absent. Raises CallRefused."""
    if not isinstance(value := body.get(name) or False, bool):
        raise wrong(name, "is neither true nor false", "send true or false")
    return value


def items(given: Mapping[str, Any], name: str, field: str) -> Sequence[Any]:
    """Return a list, which is empty where it is absent. Raises CallRefused."""
    if not isinstance(found := given.get(name) or [], list):
        raise wrong(f"{field}/{name}".lstrip("/"), "is not a list", "send a list, or leave it out")
    return found


def text(content: Any, field: str, kinds: Sequence[str] = ("text",)) -> str:
    """Return a text, or the texts of parts of some kinds. Raises CallRefused."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") in kinds]
    if not parts or len(texts) < len(parts) or not all(isinstance(one, str) for one in texts):
        raise wrong(field, "is not text", f"send a text, or parts of the type {' or '.join(kinds)}")
    return "\n".join(map(str, texts))


def arguments(given: Any, field: str) -> dict[str, Any]:
    """Return the arguments of a call, which OpenAI's dialects write as a text. Raises CallRefused."""
    try:
        found = json.loads(given or "{}")
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise wrong(field, "is not a JSON object in a text", "send what the agent said")
    return found


def listed(body: Mapping[str, Any]) -> Sequence[Any]:
    """Return the messages of a body as they came. Raises CallRefused."""
    if not isinstance(given := body.get("messages"), list) or not given:
        raise wrong("messages", "is not a list of messages", 'send [{"role": "user", "content": "..."}], for instance')
    return given


def asking(messages: tuple[Message, ...], last: int, name: str = "messages") -> tuple[Message, ...]:
    """Return messages that an agent can answer; `last` is the place of the last one in `name`. Raises CallRefused."""
    if messages[-1].role == "assistant":
        raise wrong(f"{name}/{last}", "is of the assistant", "end with a message of somebody else")
    return messages


ANY_OBJECT = {"type": "object"}
FORMATS = 'leave it out or send {"type": "json_schema", ...}, {"type": "json_object"} or {"type": "text"}'


def structured(shape: Any, field: str, *, within: str = "", tools: bool = False) -> str:
    """Return what a reply must be: a schema, any JSON object, or nothing (empty). Raises CallRefused.

    `within`: the member of `shape` that holds name and schema, where they do not stand beside its type.
    """
    if shape is None:
        return ""
    kind = shape.get("type") if isinstance(shape, Mapping) else None
    if kind == "text":
        return ""
    if kind not in ("json_schema", "json_object"):
        raise wrong(field, "is no format of replies that is known", FORMATS)
    if tools:
        rule = 'leave tools out or send tool_choice "none", or leave the format out'
        raise wrong(field, "a reply that is held to a format calls no tools", rule)
    schema = ANY_OBJECT if kind == "json_object" else _schema(shape, field, within)
    output = JsonOutput(of=schema)
    if fault := fault_of(output):
        raise CallRefused(400, "invalid_value", f"{field}: no engine can hold a reply to it: {fault}.", field)
    return output.model_dump_json()


def _schema(shape: Mapping[str, Any], field: str, within: str) -> dict[str, Any]:
    place = f"{field}/{within}" if within else field
    holder = shape.get(within) if within else shape
    if not isinstance(holder, Mapping):
        raise wrong(place, "is not an object", 'send {"name": "answer", "schema": {...}}')
    schema = holder.get("schema")
    if not isinstance(schema, dict):
        raise wrong(f"{place}/schema", "is not a JSON schema", 'send {"type": "object", "properties": {...}}')
    return schema
