"""Finding one's way in the JSON Schema of the specification: by pointer, beside the document it describes."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def value_at(document: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer; None when the path ends early."""
    here = document
    for part in pointer.strip("/").split("/"):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def node_at(schema: Schema, document: Any, pointer: str) -> Schema | None:
    """Return the schema of the value at a pointer, following references and the chosen variants."""
    node: Schema | None = schema
    here = document
    for part in pointer.strip("/").split("/"):
        node = variant(deref(node or {}, schema), here, schema)
        here = here.get(part) if isinstance(here, Mapping) else None
        properties = node.get("properties", {})
        extra = node.get("additionalProperties")
        node = properties.get(part) or (extra if isinstance(extra, Mapping) else None) or _by_pattern(node)
        if node is None:
            return None
    return node


def types(schema: Schema, document: Any, root: str) -> dict[str, Schema]:
    """Return the fields of each type of an object."""
    node = node_at(schema, document, root) or {}
    tags = {where: tag for tag, where in node["discriminator"]["mapping"].items()}
    return {tags[option["$ref"]]: deref(option, schema)["properties"] for option in node["oneOf"]}


def deref(node: Schema, schema: Schema) -> Schema:
    """Follow a reference."""
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def without_null(node: Schema, schema: Schema) -> tuple[Schema, bool]:
    """Return the schema of a value that may be null without the null, and whether it may be."""
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        return deref(options[0], schema), True
    return node, False


def variant(node: Schema, here: Any, schema: Schema) -> Schema:
    """Return the schema of the type that an object has; of the first, when it names none."""
    options = node.get("oneOf") or node.get("anyOf")
    if not options:
        return node
    mapping = node.get("discriminator", {}).get("mapping", {})
    tag = here.get("type") if isinstance(here, Mapping) else None
    if tag in mapping:
        return deref({"$ref": mapping[tag]}, schema)
    return next((deref(option, schema) for option in options if option.get("type") != "null"), {})


def _by_pattern(node: Schema) -> Schema | None:
    return next(iter(node.get("patternProperties", {}).values()), None)
