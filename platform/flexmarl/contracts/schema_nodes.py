"""Ways through a JSON schema: references, variants of a union, fields by pattern. What errors and forms both go by."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def deref(node: Schema, schema: Schema) -> Schema:
    """Follow a reference."""
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def variant(node: Schema, here: object, schema: Schema) -> Schema:
    """Return the schema of the type that an object has; of the first, when it names none."""
    options = node.get("oneOf") or node.get("anyOf")
    if not options:
        return node
    mapping = node.get("discriminator", {}).get("mapping", {})
    tag = here.get("type") if isinstance(here, Mapping) else None
    if tag in mapping:
        return deref({"$ref": mapping[tag]}, schema)
    fits = [variant(deref(one, schema), here, schema) for one in options if one.get("type") != "null"]
    if isinstance(here, Mapping):
        fits.sort(key=lambda one: "properties" not in one)
    return next(iter(fits), {})


def by_pattern(node: Schema) -> Schema | None:
    """Return the schema of fields that are named freely; None where there are none."""
    return next(iter(node.get("patternProperties", {}).values()), None)
