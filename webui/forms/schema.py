"""Finding one's way in the JSON Schema of the specification: by pointer, beside the document it describes."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.schema_nodes import Schema, by_pattern, deref, variant


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
        node = properties.get(part) or (extra if isinstance(extra, Mapping) else None) or by_pattern(node)
        if node is None:
            return None
    return node


def types(schema: Schema, document: Any, root: str) -> dict[str, Schema]:
    """Return the fields of each type of an object."""
    node = node_at(schema, document, root) or {}
    tags = {where: tag for tag, where in node["discriminator"]["mapping"].items()}
    return {tags[option["$ref"]]: deref(option, schema)["properties"] for option in node["oneOf"]}


def without_null(node: Schema, schema: Schema) -> tuple[Schema, bool]:
    """Return the schema of a value that may be null without the null, and whether it may be."""
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        return deref(options[0], schema), True
    return node, False
