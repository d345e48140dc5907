"""Actions and observations of OpenEnv in words: what an agent is told, and what it says as an action.

One field of text is the reply as it is; other actions are one JSON object by their schema; calls of tools are calls.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .tooling import text_of

METADATA = "metadata"
"""Beside every action and observation, for programs: agents are not told of it, and do not say it."""
TOOL_FIELDS = frozenset({"tool_name", "arguments"})
MOST_ERRORS = 5


class NoAction(ValueError):
    """A reply that is no action; the text says what is one."""


@dataclass(frozen=True)
class ActionForm:
    """How an agent says an action."""

    kind: Literal["text", "json", "tools"]
    field: str
    """Of the text; empty for other kinds."""
    rules: str
    """What the agent is told of it before its first turn."""
    check: Callable[[dict[str, Any]], None]
    """Raises NoAction where the library would refuse an action."""

    def action(self, text: str) -> dict[str, Any]:
        """Return the action that a text says. Raises NoAction."""
        said = {self.field: text} if self.kind == "text" else last_object(text)
        if said is None:
            raise NoAction(f"That has no JSON object. {self.rules}")
        self.check(said)
        return said


def form_of(schema: Mapping[str, Any], model: Any) -> ActionForm:
    """Return how actions of a JSON Schema are said; `model`: their class, None where it is not known."""
    fields = {name: one for name, one in schema.get("properties", {}).items() if name != METADATA}
    check = _checks(model)
    if set(fields) >= TOOL_FIELDS:
        return ActionForm("tools", "", "", check)
    if not fields:  # the base class of actions: what it takes depends on its type
        return ActionForm("tools", "", "", lambda _: None)
    [first, *others] = fields
    if not others and fields[first].get("type") == "string":
        description = fields[first].get("description", "")
        return ActionForm("text", first, f"What you say is your action as it is: {description or first}.", check)
    shown = json.dumps(_without_titles({**schema, "properties": fields}), ensure_ascii=False)
    return ActionForm("json", "", f"Answer with one JSON object of this schema, and nothing after it: {shown}", check)


def _without_titles(node: Any) -> Any:
    """Return a schema without titles, which repeat names; a field may be called so."""
    if isinstance(node, list):
        return [_without_titles(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {name: _without_titles(one) for name, one in node.items() if name != "title" or not isinstance(one, str)}


def _checks(model: Any) -> Callable[[dict[str, Any]], None]:
    """Return what checks an action by its model: an error that a validator of its own raises ends a session of the
    library's server, which cannot write it down."""

    def checked(action: dict[str, Any]) -> None:
        if not hasattr(model, "model_validate"):
            return
        try:
            model.model_validate(action)
        except ValueError as error:  # of pydantic, which is not imported here
            raise NoAction(f"That is no legal action. {why(error)}") from None

    return checked


def why(error: Any) -> str:
    """Return what is wrong with an action, by field."""
    found = error.errors() if callable(getattr(error, "errors", None)) else getattr(error, "errors", error)
    if not isinstance(found, list):
        return str(error)[:500]
    said = [f"{'.'.join(map(str, one.get('loc', ()))) or 'action'}: {one.get('msg', '')}" for one in found]
    return "; ".join(said[:MOST_ERRORS])[:500]


def last_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object of a text that no other one holds; None where there is none."""
    decoder, found, place = json.JSONDecoder(), None, text.find("{")
    while place >= 0:
        try:
            said, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            found = said
        place = text.find("{", end)
    return found


def told(observation: Mapping[str, Any]) -> str:
    """Return an observation in words: its one text, or each of its fields; what is absent is left out.

    Where it has nothing but metadata, that is all that its environment says.
    """
    fields = {name: one for name, one in observation.items() if name != METADATA and one is not None}
    if not fields:
        held = observation.get(METADATA) or {}
        fields = {name: one for name, one in held.items() if one is not None} if isinstance(held, Mapping) else {}
    if len(fields) == 1 and isinstance(only := next(iter(fields.values())), str):
        return only
    return "\n".join(f"{name}: {_words(one)}" for name, one in fields.items())


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def tool_result(observation: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what a call came to, and whether it failed."""
    error = observation.get("error")
    if error:
        return str(error.get("message", error) if isinstance(error, Mapping) else error), True
    if "tool_name" not in observation:
        return told(observation), False
    result = observation.get("result")
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        return text_of(result), bool(result.get("is_error") or result.get("isError"))
    return ("" if result is None else _words(result)), False


def tools_of(observation: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the tools that an environment lists as JSON schemas of functions."""
    return tuple(
        {
            "type": "function",
            "function": {
                "name": str(one.get("name", "")),
                "description": str(one.get("description") or ""),
                "parameters": one.get("input_schema") or {"type": "object", "properties": {}},
            },
        }
        for one in observation.get("tools") or ()
    )
