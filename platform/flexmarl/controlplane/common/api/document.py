"""What is added to the OpenAPI document once it is made: the specification's own schema, trimmed rows, examples."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.controlplane.common.api.examples import BODIES, Sampler

Schema = dict[str, Any]
REFERENCE = "#/components/schemas/"
WHOLE, PARTIAL = "ExperimentSpec", "PartialExperimentSpec"
_EXAMPLE_OF_SPEC = "reference_game"
_REFUSE_NOTHING_SENT = {"runs_create", "runs_plan", "runs_measure", "runs_put_by_external_id"}
"""Operations of which no single member is needed, and yet one of several."""


def complete(result: Schema, generator: Any, request: Any, public: bool) -> Schema:
    """Complete the document (a hook of drf-spectacular, run when enums have their names)."""
    components: Schema = result["components"]["schemas"]
    components.update(specification())
    for methods in result["paths"].values():
        for operation in methods.values():
            if any(one["name"] == "fields" for one in operation.get("parameters", ())):
                _trim(operation, components)
    sampler = Sampler(components)
    for methods in result["paths"].values():
        for operation in methods.values():
            _add_examples(operation, sampler)
    return result


def specification() -> dict[str, Schema]:
    """Return the components of a specification: whole as answers have it, partial as bodies may have it."""
    template = REFERENCE + "{model}"
    whole = ExperimentSpec.model_json_schema(mode="serialization", ref_template=template.format(model="Spec{model}"))
    partial = ExperimentSpec.model_json_schema(ref_template=template.format(model="PartialSpec{model}"))
    found = {f"Spec{name}": _without(schema, _DEFAULTS) for name, schema in whole.pop("$defs").items()}
    found |= {f"PartialSpec{name}": _loose(schema) for name, schema in partial.pop("$defs").items()}
    about = "A specification of which any part may be missing: defaults, template and preset complete it."
    example = resolve({}, template=_EXAMPLE_OF_SPEC).document
    found[WHOLE] = {**_without(whole, _DEFAULTS), "example": example}
    found[PARTIAL] = {**_loose(partial), "description": about, "example": {"seed": 7}}
    return found


_DEFAULTS = frozenset({"default", "title"})
"""Answers are complete: what a member would be without a value says nothing of them. Generated clients name classes by
titles, and the whole and the partial specification have the same ones."""
_NEEDS = frozenset({"default", "title", "required", "discriminator", "minProperties"})


def _loose(schema: Schema) -> Schema:
    """Ask for no member, and for any variant: what is missing is known only when all is laid together."""
    loose: Schema = _without(schema, _NEEDS, {"oneOf": "anyOf"})
    return loose


def _without(node: Any, names: frozenset[str], renamed: Mapping[str, str] | None = None) -> Any:
    """Leave out keywords of a schema; members of an object that happen to be called so stay."""
    if isinstance(node, list):
        return [_without(value, names, renamed) for value in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for name, value in node.items():
        if name == "properties":
            kept[name] = {member: _without(one, names, renamed) for member, one in value.items()}
        elif name not in names:
            kept[(renamed or {}).get(name, name)] = _without(value, names, renamed)
    return kept


def _trim(operation: Schema, components: Schema) -> None:
    """Let the rows of a list be what `fields` leaves of them, and say which members it may name."""
    content = operation["responses"]["200"]["content"]["application/json"]["schema"]
    listed = components[content["$ref"].removeprefix(REFERENCE)]
    items = listed["properties"]["results"]["items"]
    name = _row_of(items)
    row = components[name]
    trimmed = f"Trimmed{name}"
    kept = {member: value for member, value in row.items() if member != "required"}
    components[trimmed] = {**kept, "description": f"What `fields` leaves of {name}."}
    listed["properties"]["results"]["items"] = {"anyOf": [_ref(name), _ref(trimmed)]}
    for parameter in operation["parameters"]:
        if parameter["name"] == "fields":
            named = {"type": "array", "items": {"type": "string", "enum": sorted(row["properties"])}}
            parameter.update(schema=named, style="form", explode=False, example=sorted(row["properties"])[:1])


def _row_of(items: Schema) -> str:
    reference = items.get("$ref") or items["anyOf"][0]["$ref"]
    return str(reference.removeprefix(REFERENCE))


def _ref(name: str) -> Schema:
    return {"$ref": REFERENCE + name}


def _add_examples(operation: Schema, sampler: Sampler) -> None:
    if operation["operationId"] in _REFUSE_NOTHING_SENT:
        operation["requestBody"]["required"] = True
    for parameter in operation.get("parameters", ()):
        if parameter.get("required") and "example" not in parameter:
            parameter["example"] = sampler.of(parameter["schema"], parameter["name"])
    for media in operation.get("requestBody", {}).get("content", {}).values():
        own = BODIES.get(operation["operationId"])
        media["example"] = sampler.of(media["schema"], "", needed_only=True) if own is None else own
    for status, answer in operation["responses"].items():
        for kind, media in answer.get("content", {}).items():
            if status == "default" or media["schema"].get("format") == "binary":
                continue
            is_json = kind == "application/json"
            media["example"] = (
                sampler.of(media["schema"], "") if is_json else sampler.text_of(operation["operationId"], kind)
            )
