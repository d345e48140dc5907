"""Refusals that name the field, the rule and a legal value.

A `Problem` is what the API returns per field and what the form shows beside its input; texts are for people, `code`
is for programs.
"""

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from flexmarl.contracts.base import Record
from flexmarl.contracts.ids import NAME
from flexmarl.contracts.schema_nodes import by_pattern, deref, variant


class Problem(Record):
    pointer: str
    """JSON pointer of the offending field, e.g. `/batch/micro_batch_groups`."""
    code: str
    """Stable name of the rule, e.g. `unknown_field`, `not_available`, `out_of_range`."""
    detail: str
    """The rule that was broken."""
    hint: str = ""
    """A legal value near the given one, or what to do."""


class SpecProblems(ValueError):
    """A specification was refused. Carries every problem found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.pointer}: {p.detail}" for p in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.problems,))


def pointer(path: Iterable[object]) -> str:
    """Render a path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def nearest(word: str, legal: Iterable[str]) -> str:
    """Return the legal word that looks most like `word`, or '' when none does."""
    matches = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.5)
    return matches[0] if matches else ""


def problems_of(error: ValidationError, model: type[BaseModel], raw: object) -> list[Problem]:
    """Translate pydantic's errors. `model` is what was validated; its JSON Schema lists the legal fields."""
    schema = _schema_of(model)
    return [_problem(item, schema, raw) for item in error.errors(include_url=False)]


def broken_at(path: Iterable[object], rule: str) -> PydanticCustomError:
    """Return what a validator of several fields raises: the rule, and which of them, by its path, breaks it."""
    return PydanticCustomError("broken_at", "{rule}", {"rule": rule, "below": pointer(path)})


_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a model. Made once: that of a specification takes a fifth of a second."""
    return model.model_json_schema()


def _problem(item: Any, schema: Mapping[str, Any], raw: object) -> Problem:
    kind, context = item["type"], item.get("ctx", {})
    path = document_path(item["loc"], raw, missing=kind == "missing")
    where = pointer(path)
    name = str(path[-1]) if path else "specification"
    if kind == "broken_at":
        return Problem(pointer=where + context["below"], code="invalid", detail=f"{context['rule']}.")
    if kind == "extra_forbidden":
        owners = _owners(path, schema, raw)
        if owners:
            chosen = _value(path[:-1], raw)
            kind = chosen.get("type", "the default") if isinstance(chosen, Mapping) else "the default"
            detail = f"{name} is a setting of {', '.join(owners)}; {kind} does not use it."
            return Problem(pointer=where, code="not_read", detail=detail, hint=f"Remove it, or set type: {owners[0]}.")
        legal = _legal_fields(path[:-1], schema, raw)
        close = nearest(name, legal)
        hint = f"Did you mean {close}?" if close else f"Fields here: {', '.join(legal)}." if legal else "Remove it."
        return Problem(pointer=where, code="unknown_field", detail=f"{name} is not a known field.", hint=hint)
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        bound = context[key]
        return Problem(
            pointer=where,
            code="out_of_range",
            detail=f"{name} must be {words} {bound}; it is {item['input']}.",
            hint=f"Set {bound}." if key in ("ge", "le") else f"Set a value {words} {bound}.",
        )
    if kind in ("literal_error", "union_tag_invalid", "enum"):
        legal_text = str(context.get("expected") or context.get("expected_tags", ""))
        return Problem(
            pointer=where + ("/type" if kind == "union_tag_invalid" else ""),
            code="unknown_value",
            detail=f"{name} cannot be {context.get('tag', item['input'])!r}.",
            hint=f"Legal values: {legal_text}.",
        )
    if kind == "string_pattern_mismatch":
        examples = _node(path, schema, raw).get("examples", ())
        hint = f"Write it like {examples[0]}." if examples else _words_of(context["pattern"])
        detail = f"{name} cannot be {item['input']!r}." if item["input"] else f"{name} is empty."
        return Problem(pointer=where, code="invalid", detail=detail, hint=hint)
    if kind in ("missing", "union_tag_not_found"):
        return Problem(
            pointer=where + ("/type" if kind == "union_tag_not_found" else ""),
            code="required",
            detail=f"{name} is required.",
            hint=_legal(_node(path, schema, raw), schema),
        )
    if kind in ("model_type", "model_attributes_type", "dict_type", "dataclass_type"):
        hint = _legal(_node(path, schema, raw), schema)
        detail = f"{name} must be a mapping of fields; it is {item['input']!r}."
        return Problem(pointer=where, code="wrong_type", detail=detail, hint=hint)
    code = "wrong_type" if kind.endswith(("_type", "_parsing")) else "invalid"
    hint = "" if kind == "value_error" else _legal(_node(path, schema, raw), schema)
    said = str(context["error"]) if kind == "value_error" else item["msg"]  # pydantic puts "Value error, " before it
    return Problem(pointer=where, code=code, detail=f"{name}: {said}.", hint=hint)


def _legal(node: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return a legal value of a field: an example of its own, its only words, or one of its type."""
    tags = node.get("discriminator", {}).get("mapping", {})
    if tags:
        return f"Set type to one of: {', '.join(tags)}."
    node = variant(node, None, schema)
    if node.get("examples"):
        return f"Write it like {node['examples'][0]}."
    if node.get("enum"):
        return f"Legal values: {', '.join(str(word) for word in node['enum'])}."
    if "const" in node:
        return f"Set {node['const']}."
    if node.get("properties"):
        return f"Its fields: {', '.join(node.get('required') or sorted(node['properties']))}."
    if node.get("patternProperties") or isinstance(node.get("additionalProperties"), Mapping):
        return "Write name: {...} for each."
    bound = node.get("minimum", node.get("default"))
    words = {
        "integer": f"Set a whole number, for example {1 if bound is None else bound}.",
        "number": f"Set a number, for example {1 if bound is None else bound}.",
        "boolean": "Set true or false.",
        "string": "Set a text of at least one character." if node.get("minLength") else "Set a text.",
        "array": "Set a list, such as [0].",
    }
    return words.get(str(node.get("type")), "")


def _words_of(pattern: str) -> str:
    """Return what a pattern asks for."""
    if pattern == NAME:
        return "Use at most 32 lower-case letters, digits and underscores, beginning with a letter."
    return f"It must match {pattern}."


def document_path(loc: tuple[int | str, ...], raw: object, *, missing: bool) -> list[int | str]:
    """Drop the union tags and validator names that pydantic puts between the fields of the document."""
    path: list[int | str] = []
    here = raw
    for i, part in enumerate(loc):
        if isinstance(here, Mapping):
            is_last = i == len(loc) - 1
            if part not in here and not (is_last and missing):
                continue
            if path and loc[i - 1] == path[-1] and part == here.get("type") and (is_last or loc[i + 1] in here):
                continue  # a tag that is the name of a field as well: it comes once, right behind its object
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            here = here[part] if part < len(here) else None
        else:
            continue
        path.append(part)
    return path


def _legal_fields(path: list[int | str], schema: Mapping[str, Any], raw: object) -> list[str]:
    """List the property names of the object at `path`."""
    return sorted(variant(_node(path, schema, raw), _value(path, raw), schema).get("properties", {}))


def _owners(path: list[int | str], schema: Mapping[str, Any], raw: object) -> list[str]:
    """List the types of an object that have a field which its own type has not."""
    mapping = _node(path[:-1], schema, raw).get("discriminator", {}).get("mapping", {})
    return [tag for tag, where in mapping.items() if path[-1] in deref({"$ref": where}, schema).get("properties", {})]


def _value(path: list[int | str], raw: object) -> object:
    for part in path:
        raw = raw.get(part) if isinstance(raw, Mapping) else None
    return raw


def _node(path: list[int | str], schema: Mapping[str, Any], raw: object) -> Mapping[str, Any]:
    """Return the schema of the value at `path`, following references and the chosen union variants."""
    node: Mapping[str, Any] = schema
    here = raw
    for part in path:
        node = variant(deref(node, schema), here, schema)
        if isinstance(part, int):
            here = here[part] if isinstance(here, list) and part < len(here) else None
            node = node.get("items") or {}
            continue
        here = here.get(part) if isinstance(here, Mapping) else None
        properties = node.get("properties", {})
        node = properties.get(part) or node.get("additionalProperties") or by_pattern(node) or {}
    return deref(node, schema) if isinstance(node, Mapping) else {}
