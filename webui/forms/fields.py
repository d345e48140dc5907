"""Fields of the form of a run, from the JSON Schema of the specification: of what kind, within what bounds.

Pure. A field with one legal value offers no choice and is left out; the YAML tab shows everything. Where the type of an
object is a choice, the fields of all its types are there, and the page shows those of the chosen one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flexmarl.contracts.schema_nodes import Schema, deref, variant
from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.graphs import GRAPH
from flexmarl.contracts.specification.kinds import KINDS
from flexmarl.contracts.specification.reading import KEY, one_of
from webui.formats import number
from webui.forms.labels import LABELS, LABELS_AT
from webui.forms.schema import node_at, types, value_at, without_null

Ways = tuple[tuple[Mapping[str, Any], ...], ...]
_OPEN = frozenset({"choice", "truth", "kind", "version", "sees", "acts", "definition", "area"})


@dataclass(frozen=True, slots=True)
class Field:
    """One input: where it is in the document, and of what kind: number, integer, text, choice, flag, pairs, whole
    numbers with commas between (`list`), a number of devices or its two bounds (`devices`), the type of an object
    (`variant`), or what a policy is of (`model`). Where nothing need be written, yes and no have a third state
    (`truth`)."""

    pointer: str
    label: str
    kind: str
    value: Any
    options: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    optional: bool = False
    help: str = ""
    plain: Any = None
    """What it is without a word of people."""
    when: tuple[str, ...] = ()
    """Types of its object that have it; empty: all."""
    ways: Ways = ()
    """In which ways it is read, each a list of conditions as the page takes them; empty: always."""
    of: str = ""
    """The policy it is a setting of, where each has its own."""
    absent: str = ""
    """Of a field that may be empty: what it says then."""

    @property
    def name(self) -> str:
        """What the field is called in its object."""
        return self.pointer.rpartition("/")[2]

    @property
    def broad(self) -> bool:
        """Whether what is written here is long."""
        return self.kind in {"pairs", "json", "area"} or self.pointer.endswith(("/url", "/adapter"))

    @property
    def written_by_script(self) -> bool:
        """Whether its value is no text of its own, so that the page's script writes it into the input."""
        return self.kind in {"pairs", "list", "devices"}

    @property
    def opens(self) -> bool:
        """Whether it offers to say nothing, beside what it offers to choose or to write."""
        return self.optional and self.kind in _OPEN

    @property
    def hint(self) -> str:
        """What the schema says of the field, and its legal range in words."""
        bounds = {"from": self.low, "to": self.high}
        given = [
            f"{word} {number(value, 0 if value == int(value) else 2)}"
            for word, value in bounds.items()
            if value is not None
        ]
        text = " ".join(given)
        return " ".join(part for part in (self.help, f"{text[:1].upper()}{text[1:]}." if text else "") if part)


OPTIONAL = {
    "/budget/target": "/budget/target/value",
    "/sampling/replay/begins_with": "/sampling/replay/begins_with/name",
}
"""An object that may be absent -> the one field that stands for it."""
_EMPTY = {"/budget/target": "Empty: never."}
WHOLE = {
    "/environment/dataset": ("Dataset", "dataset"),
    "/environment/scores": ("Scores", "json"),
    "/environment/tools/servers": ("Tool servers", "json"),
    "/resources/rollout_devices": ("Rollout devices", "devices"),
    "/environment/runner/command": ("Command", "json"),
    "/environment/runner/env": ("Variables", "json"),
    "/environment/runner/container": ("Container", "json"),
    "/environment/runner/workspace": ("Workspace", "json"),
    "/environment/runner/evaluator": ("Evaluator", "json"),
}
"""A value that is chosen or written in one piece -> what it is called, and the kind of its field."""
ABSENT = {"/environment/runner/container": "None: the files of the host"}
"""One of them that is written here where it is absent, too -> what it says then."""
_CHOSEN = {
    "/algorithm/kl/reference": "The earlier version of the policy that the KL penalty refers to.",
    "/mechanisms/allocation/window": "How long engines have the devices that they share with trainers, in each step: "
    "until nothing plays (played), for a fixed time (fixed), or for one that is corrected after each step (measured).",
    # The environment and its graph come with the template: others have other roles.
    **{kind.pointer: kind.base.summary() for kind in KINDS if kind not in (ENVIRONMENT, GRAPH)},
}
_TUNING = "What is trained: all weights, or a low-rank adapter on a frozen model."


def chosen_types(document: Schema) -> dict[str, str]:
    """Return the objects whose type people choose here -> what is chosen."""
    return {**_CHOSEN, **{f"/policies/{policy}/tuning": _TUNING for policy in document["policies"]}}


def unions(document: Schema, schema: Schema) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what each type of an object is without a word of people, by pointer and type."""
    return {
        root: {
            tag: {name: node["default"] for name, node in own.items() if "default" in node} | {"type": tag}
            for tag, own in types(schema, document, root).items()
        }
        for root in chosen_types(document)
    }


def one_field(document: Schema, schema: Schema, pointer: str) -> Field | None:
    """Describe the field at a pointer; None when the document has none there."""
    root = pointer.removesuffix("/type")
    if root != pointer and root in chosen_types(document):
        return next(_union(document, schema, root))
    value = value_at(document, pointer)
    node = node_at(schema, document, pointer)
    if node is None or isinstance(value, Mapping):
        return None
    return described(pointer, value, node, schema)


def fields_at(document: Schema, schema: Schema, pointer: str, without: frozenset[str]) -> Iterator[Field]:
    """Describe every field from a pointer downwards, in the order of the schema."""
    if pointer in without:
        return
    if pointer in OPTIONAL:
        yield from _optional_object(document, schema, pointer)
        return
    if pointer in WHOLE:
        (label, kind), absent = WHOLE[pointer], ABSENT.get(pointer, "")
        if (whole := value_at(document, pointer)) is not None or absent:
            whole_node, there = node_at(schema, document, pointer) or {}, bool(absent)
            plain = whole_node.get("default")
            yield Field(pointer, label, kind, whole, optional=there, help=_help(whole_node), plain=plain, absent=absent)
        return
    if pointer in chosen_types(document):
        yield from (one for one in _union(document, schema, pointer) if one.pointer not in without)
        return
    value, node = value_at(document, pointer), node_at(schema, document, pointer)
    if isinstance(value, Mapping):
        for key in _ordered(value, node, schema):
            yield from fields_at(document, schema, f"{pointer}/{key}", without)
        return
    made = described(pointer, value, node, schema) if node is not None else None
    if made is not None:
        yield made


def described(pointer: str, value: Any, node: Schema, schema: Schema) -> Field | None:
    """Describe a field from its schema; None when it leaves no choice, or is of no kind that an input can take."""
    base, optional = without_null(deref(node, schema), schema)
    leaf = pointer.rpartition("/")[2]
    label = LABELS_AT.get(pointer) or LABELS.get(leaf) or _plain_label(leaf)
    text = _help(node) or _help(base)
    options = tuple(str(option) for option in base.get("enum", ()))
    plain, ways = node.get("default"), ways_at(pointer, node)
    if "const" in base or len(options) == 1:
        return None
    if options:
        return Field(pointer, label, "choice", value, options, help=text, plain=plain, ways=ways)
    kind = {"integer": "integer", "number": "number", "boolean": "flag", "string": "text", "object": "pairs"}.get(
        str(base.get("type"))
    )
    low, high = base.get("minimum"), base.get("maximum")
    if kind is None or (low is not None and low == high):
        return None
    return Field(pointer, label, kind, value, (), low, high, optional, text, plain, ways=ways)


def _help(node: Schema) -> str:
    """Return what the schema says of a value, without details."""
    return " ".join(str(node.get("description") or "").partition("\n\n")[0].split())


def ways_at(pointer: str, node: Schema) -> Ways:
    """Return in which ways a field is read, as its schema says, with the pointers of this document."""
    above, parts = pointer.rpartition("/")[0], pointer.split("/")
    policy = parts[2] if parts[1] == "policies" else ""

    def placed(condition: Mapping[str, Any]) -> dict[str, Any]:
        named = str(condition["pointer"])
        return {**condition, "pointer": named.replace("*", policy) if named.startswith("/") else f"{above}/{named}"}

    return tuple(tuple(map(placed, way)) for way in node.get(KEY, ()))


def _plain_label(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _ordered(value: Schema, node: Schema | None, schema: Schema) -> list[str]:
    """Keys in the order of the schema; a document that came from a database has lost its own."""
    known = list(variant(deref(node or {}, schema), value, schema).get("properties", {}))
    return sorted(value, key=lambda key: known.index(key) if key in known else len(known))


def _optional_object(document: Schema, schema: Schema, pointer: str) -> Iterator[Field]:
    """One field for an object that may be absent."""
    shown = OPTIONAL[pointer]
    node = node_at(schema, document, pointer) or {}
    inner = variant(deref(node, schema), {}, schema)
    leaf = inner.get("properties", {}).get(shown.rpartition("/")[2])
    made = described(shown, value_at(document, shown), leaf, schema) if leaf is not None else None
    if made is not None:
        said = _EMPTY.get(pointer) or _help(node)
        yield Field(
            made.pointer, made.label, made.kind, made.value, optional=True, help=said, ways=ways_at(pointer, node)
        )


def _union(document: Schema, schema: Schema, root: str) -> Iterator[Field]:
    """The choice of a type, then each field of any of them once: those of few types before those of several."""
    own_types = types(schema, document, root)
    label = LABELS_AT.get(f"{root}/type") or root.rpartition("/")[2].capitalize()
    own_node = node_at(schema, document, root) or {}
    plain = own_node.get("default") or {}
    chosen = value_at(document, f"{root}/type")
    if len(own_types) > 1:
        words = chosen_types(document)[root]
        yield Field(f"{root}/type", label, "variant", chosen, tuple(own_types), help=words, plain=plain.get("type"),
                    ways=ways_at(root, own_node))  # fmt: skip
    foreign = {name for kind in KINDS if kind.pointer == root for name in kind.installed()}
    nodes = {name: node for own in own_types.values() for name, node in own.items() if name != "type"}
    when = {name: tuple(tag for tag, own in own_types.items() if name in own) for name in nodes}
    for name in sorted(nodes, key=lambda name: len(when[name])):
        pointer = f"{root}/{name}"
        value = value_at(document, pointer)
        made = described(pointer, nodes[name].get("default") if value is None else value, nodes[name], schema)
        if made is not None:
            # A setting that only plug-ins of others have is called by its own name, whatever is called alike elsewhere.
            label = _plain_label(name) if foreign.issuperset(when[name]) else made.label
            yield replace(made, when=when[name], label=label, ways=_typed_ways(root, name, own_types))


def _typed_ways(root: str, name: str, own_types: Mapping[str, Schema]) -> Ways:
    """Return in which ways a field of some types is read: types that say the same of it make one way."""
    by_type = {tag: ways_at(f"{root}/{name}", own[name]) or ((),) for tag, own in own_types.items() if name in own}
    groups: list[tuple[Ways, list[str]]] = []
    for tag, ways in by_type.items():
        same = next((tags for known, tags in groups if known == ways), None)
        if same is None:
            groups.append((ways, [tag]))
        else:
            same.append(tag)
    if len(by_type) == len(own_types) and len(groups) == 1:
        return groups[0][0] if groups[0][0] != ((),) else ()
    return tuple((one_of(f"{root}/type", *tags)(), *way) for ways, tags in groups for way in ways)
