"""JSON Schemas of what a foreign constructor or function takes, read from its signature."""

import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

NAMES: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
CONTAINERS: dict[Any, str] = {list: "array", tuple: "array", set: "array", dict: "object"}
PLAIN = (bool, int, float, str, type(None))


def of_callable(function: Callable[..., Any], without: Iterable[str] = ()) -> dict[str, Any]:
    """Return the schema of a callable's parameters that JSON can say; `without` are those that are not the user's."""
    skipped = {"self", "cls", *without}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {"type": "object", "properties": {}, "additionalProperties": True}
    try:
        hints = get_type_hints(function)
    except Exception:  # names of foreign modules that are imported only while types are checked
        hints = {}
    found: dict[str, Any] = {}
    required = []
    more = False
    for name, one in signature.parameters.items():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            more = True
        if name in skipped or one.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            continue
        node = _node(hints.get(name, one.annotation))
        if one.default is inspect.Parameter.empty:
            required.append(name)
        elif _plain(one.default):
            node = {**(node or _of_value(one.default)), "default": _json(one.default)}
        found[name] = node
    schema = {"type": "object", "properties": found, "additionalProperties": more}
    return {**schema, "required": required} if required else schema


def of_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of settings by their values, which are the defaults."""
    known = {name: value for name, value in settings.items() if _plain(value)}
    properties = {name: {**_of_value(value), "default": _json(value)} for name, value in known.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _node(kind: Any) -> dict[str, Any]:
    """Return what is legal by an annotation; everything where it says nothing."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in NAMES:
        return {"type": NAMES[kind]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        options = [{"type": "null"} if one is type(None) else _node(one) for one in inner]
        return {"anyOf": options} if all(options) else {}
    named = CONTAINERS.get(origin or kind)
    return {"type": named} if named else {}


def _of_value(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return {"type": NAMES.get(type(value)) or CONTAINERS[type(value)]}


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _plain(one) for name, one in value.items())
    return type(value) in PLAIN and (not isinstance(value, float) or math.isfinite(value))


def _json(value: Any) -> Any:
    return [_json(one) for one in value] if isinstance(value, list | tuple) else value


def summary_of(thing: object) -> str:
    """Return the first paragraph of a docstring in one line."""
    text = inspect.getdoc(thing) or ""
    return " ".join(text.partition("\n\n")[0].split())[:300]
