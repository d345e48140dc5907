"""Fields for values of which only some were written: each may be empty, and says what holds then.

Pure. New run's form shows whole documents, with a value in every field. What is saved in versions keeps what was
written alone, so here an empty field is a setting that nobody wrote, which a definition or a default decides.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flexmarl.contracts.schema_nodes import Schema, deref
from webui.forms.fields import Field, described
from webui.forms.labels import LABELS
from webui.forms.schema import without_null

LONG_TEXT = 1000
"""Most letters from which on a text is written in several lines."""
_NUMBERS = {"number", "integer"}


def open_fields(pointer: str, node: Schema, value: Any, schema: Schema, absent: str = "") -> Iterator[Field]:
    """Describe every field from a pointer downwards. `absent`: what empty fields say in place of their defaults."""
    base, absent_is_legal = without_null(deref(node, schema), schema)
    mapping = base.get("discriminator", {}).get("mapping")
    properties = base.get("properties")
    if (mapping is None and properties is None) or not (value is None or isinstance(value, Mapping)):
        yield from _leaf(pointer, node, value, schema, absent)
        return
    if mapping is not None:
        chosen = None if (tag := (value or {}).get("type")) is None else str(tag)
        yield _variant(pointer, node, chosen, tuple(mapping), absent)
        properties = deref({"$ref": mapping[chosen]}, schema)["properties"] if chosen in mapping else {}
    for name, child in (properties or {}).items():
        if name == "type":
            continue
        for field in open_fields(f"{pointer}/{name}", child, (value or {}).get(name), schema, absent):
            label = f"{label_of(pointer)}: {field.label.lower()}" if absent_is_legal else field.label
            yield replace(field, label=label)


def _leaf(pointer: str, node: Schema, value: Any, schema: Schema, absent: str) -> Iterator[Field]:
    plain = node.get("default")
    base, _ = without_null(deref(node, schema), schema)
    made = described(pointer, value, node, schema)
    if "const" in base:
        return
    if made is None:
        help_text = " ".join(str(node.get("description") or base.get("description") or "").partition("\n\n")[0].split())
        made = Field(pointer, label_of(pointer), "json", value, help=help_text, plain=plain)
    if made.kind == "pairs":
        made = replace(made, kind="json")
    if made.kind == "flag":
        made = replace(made, kind="truth")
    if made.kind == "text" and base.get("maxLength", 0) >= LONG_TEXT and not pointer.endswith(("/path", "/adapter")):
        made = replace(made, kind="area")
    if not _fits(made, value):
        made = replace(made, kind="json", options=())
    yield replace(made, optional=True, ways=(), absent=absent or _by_default(made.kind, plain))


def _fits(field: Field, value: Any) -> bool:
    """Say whether a value can stand in its field: what cannot is shown as it was written."""
    if value is None or field.kind == "json":
        return True
    if field.kind in _NUMBERS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if field.kind == "truth":
        return isinstance(value, bool)
    return isinstance(value, str) and (field.kind != "choice" or value in field.options)


def _variant(pointer: str, node: Schema, chosen: str | None, tags: tuple[str, ...], absent: str) -> Field:
    plain = (node.get("default") or {}).get("type")
    said = absent or _by_default("choice", plain)
    known = tags if chosen is None or chosen in tags else (*tags, chosen)
    help_text = " ".join(str(node.get("description") or "").split())
    label = label_of(pointer)
    return Field(f"{pointer}/type", label, "kind", chosen, known, optional=True, help=help_text, plain=plain,
                 absent=said)  # fmt: skip


def label_of(pointer: str) -> str:
    """Return what a field is called, by its name."""
    leaf = pointer.rpartition("/")[2]
    return LABELS.get(leaf) or leaf.replace("_", " ").capitalize()


def _by_default(kind: str, plain: Any) -> str:
    if plain is None or plain in ("", [], {}):
        return "none"
    if kind == "truth":
        return "yes (default)" if plain else "no (default)"
    if kind in _NUMBERS:
        return f"{plain:g} (default)"
    return f"{plain} (default)".replace("_", " ") if isinstance(plain, str) else "default"
