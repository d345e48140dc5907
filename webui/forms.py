"""The form of a run from the JSON Schema of the specification: which fields, of what kind, within what bounds.

Pure: the resolved document of a template and the schema in, groups of fields out. A field with one legal value offers
no choice and is left out; the YAML tab shows everything. Where the type of an object is a choice, the fields of all its
types are there, and the page shows those of the chosen one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webui.formats import number

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One input: where it is in the document, and of what kind: number, integer, text, choice, flag, pairs, variant."""

    pointer: str
    label: str
    kind: str
    value: Any
    options: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    optional: bool = False
    help: str = ""
    when: tuple[str, ...] = ()
    """Types of its object that have it; empty: all."""

    @property
    def broad(self) -> bool:
        """Whether what is written here is long."""
        return self.kind == "pairs" or self.pointer.endswith("/url")

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


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    title: str
    fields: tuple[Field, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class AgentRow:
    role: str
    policy: str
    fields: tuple[Field | None, ...]
    """Model, training, most tokens, temperature, learning rate; None where the agent has no such value."""


_LABELS = {
    "tasks_per_step": "Tasks per step",
    "episodes_per_task": "Episodes per task",
    "micro_batch_groups": "Micro-batch groups",
    "rollout_groups": "Groups per command",
    "min_members": "Least members",
    "episode_timeout_s": "Episode limit, s",
    "train_steps": "Train steps",
    "seconds": "Time limit, s",
    "value": "Stop at evaluation",
    "divide_by_std": "Divide by deviation",
    "per_turn": "Compare per turn",
    "team_share": "Team share",
    "every_steps": "Every steps",
    "tasks": "Held-out tasks",
    "bound": "Staleness bound",
    "max_tokens": "Max tokens",
    "start": "Entropy bonus",
    "end_share": "Bonus end share",
    "decay_steps": "Bonus decay steps",
}
_GROUPS = (
    ("environment", "Environment", ("/environment", "/reward"), ("/environment/type", "/environment/latency")),
    ("batch", "Batch", ("/batch",), ()),
    ("algorithm", "Algorithm", ("/algorithm", "/sampling"), ()),
    ("pipeline", "Pipeline", ("/mechanisms",), ()),
    ("resources", "Resources", ("/resources",), ()),
    (
        "budget",
        "Budget",
        ("/budget", "/evaluation", "/checkpoints", "/seed"),
        ("/budget/target/metric",),
    ),
)
_LABELS_AT = {
    "/algorithm/loss/type": "Loss",
    "/algorithm/loss/aggregation": "Loss average",
    "/algorithm/group_key": "Compared rows",
    "/algorithm/advantage/baseline_over": "Mean over",
    "/algorithm/advantage/turn_rewards": "Turn rewards",
    "/algorithm/advantage/gamma": "Discount a turn",
    "/algorithm/advantage/gae_lambda": "Later surprises",
    "/algorithm/advantage/critic_rate": "Critic's rate",
    "/algorithm/shaping/type": "Reward shaping",
    "/algorithm/shaping/buffer_tokens": "Overlong buffer",
    "/algorithm/shaping/penalty": "Overlong penalty",
    "/algorithm/shaping/form": "Judged by",
    "/algorithm/shaping/strength": "Strength",
    "/algorithm/shaping/history": "History of",
    "/algorithm/shaping/gamma": "Later turns count",
    "/sampling/keep_members": "Members kept",
    "/sampling/branch_controller": "Branching",
    "/sampling/branch_score": "Answers score",
    "/sampling/branch_carry": "Carried on by",
    "/sampling/branch_joint": "Joint answers",
    "/algorithm/kl/coefficient": "KL to reference",
    "/algorithm/kl/reference/type": "Reference",
    "/algorithm/kl/reference/every": "Renewed every",
    "/algorithm/kl/estimator": "KL estimator",
    "/algorithm/loss/clip_low": "Clip below",
    "/algorithm/loss/clip_high": "Clip above",
    "/algorithm/loss/dual_clip": "Dual clip",
    "/algorithm/loss/weight_limit": "Largest weight",
    "/algorithm/loss/gate_positive": "Gate, positive",
    "/algorithm/loss/gate_negative": "Gate, negative",
    "/algorithm/loss/norm_tokens": "Tokens of a row",
    "/algorithm/loss/beta": "Preference's beta",
    "/algorithm/importance_level": "Ratio of",
    "/algorithm/importance_limit": "Largest ratio",
    "/algorithm/importance_floor": "Smallest ratio",
    "/algorithm/stale_after": "Versions old",
    "/sampling/group_filter": "Group filter",
    "/sampling/draw_limit": "Draws a group",
    "/evaluation/every_steps": "Evaluate every",
    "/checkpoints/every_steps": "Checkpoint every",
    "/checkpoints/keep_last": "Newest kept",
    "/checkpoints/keep_best": "Best kept",
    "/checkpoints/keep_every": "Kept every",
    "/algorithm/advantage/type": "Advantage",
    "/batch/min_members": "Least members",
    "/batch/min_rows": "Least rows",
    "/batch/mini_batches": "Mini-batches",
    "/batch/max_carry": "Most carries",
    "/batch/max_attempts": "Most attempts",
    "/batch/weights_timeout_s": "Weights limit, s",
    "/mechanisms/lag_policy/at_cut": "At the cut",
    "/mechanisms/redundancy/type": "Redundancy",
    "/mechanisms/redundancy/extra": "Extra of these",
    "/mechanisms/publication/type": "Publication",
    "/mechanisms/publication/content": "Sent as",
    "/mechanisms/durability/type": "Durability",
    "/mechanisms/durability/every": "Durable every",
    "/mechanisms/allocation/type": "Allocation",
    "/mechanisms/allocation/keep_warm_s": "Keep warm, s",
    "/mechanisms/allocation/patience_s": "Patience, s",
    "/mechanisms/mover/type": "Mover",
    "/mechanisms/mover/delta": "Mover's delta",
    "/mechanisms/mover/hold_s": "Mover's hold, s",
    "/mechanisms/parallel/episodes": "Episodes at once",
    "/mechanisms/parallel/members": "Members at once",
    "/mechanisms/parallel/agents": "Agents at once",
    "/mechanisms/ordered": "Ordered sums",
    "/resources/pace/micro_batch_s": "Pace, s a batch",
    "/resources/pace/row_s": "Pace, s a row",
    "/resources/pace/step_s": "Pace, s a step",
    "/resources/hold_s": "Hold devices, s",
    "/reward/type": "Reward",
    "/reward/cost_per_token": "Cost per token",
    "/reward/url": "Service address",
    "/reward/secret": "Name of secret",
    "/reward/name": "Function",
    "/reward/settings": "Its settings",
    "/reward/timeout_s": "Reward limit, s",
    "/reward/max_tries": "Reward tries",
    "/reward/wait_s": "Reward wait, s",
}
_OF_POLICIES = ("precision", "activations")
_OPTIONAL = {"/budget/target": "/budget/target/value"}
"""An object that may be absent -> the one field that stands for it."""
_UNIONS = {
    "/reward": "What an episode earns: its environment's own scores, or what a reward function makes of it.",
    "/algorithm/shaping": "What a row's reward counts as before it is compared: as it is, or seen beside more.",
    "/algorithm/kl/reference": "Which of its earlier versions a policy is kept near to.",
}
"""An object whose type people choose here -> what is chosen."""


@dataclass(slots=True)
class _Walk:
    schema: Schema
    fields: list[Field] = field(default_factory=list)


def agent_rows(document: Schema, schema: Schema) -> list[AgentRow]:
    """One row per agent with the values people change most."""
    rows = []
    for role, agent in document["agents"].items():
        policy = agent.get("policy") or role
        pointers = (
            f"/policies/{policy}/model/size",
            f"/agents/{role}/trainable",
            f"/agents/{role}/sampling/max_tokens",
            f"/agents/{role}/sampling/temperature",
            f"/policies/{policy}/optimizer/learning_rate",
        )
        rows.append(AgentRow(role, policy, tuple(one_field(document, schema, pointer) for pointer in pointers)))
    return rows


def groups(document: Schema, schema: Schema) -> list[Group]:
    """The other groups, without fields that leave no choice."""
    found = []
    for name, title, roots, without in _GROUPS:
        walk = _Walk(schema)
        for root in roots:
            _collect(walk, document, root, without)
        if walk.fields:
            found.append(Group(name, title, tuple(walk.fields)))
        if name == "batch":
            found.append(Group("policies", "Policies", tuple(_of_policies(document, schema))))
    return found


def _of_policies(document: Schema, schema: Schema) -> Iterator[Field]:
    """How each policy is computed."""
    for policy in document["policies"]:
        for name in _OF_POLICIES:
            made = one_field(document, schema, f"/policies/{policy}/{name}")
            if made is not None:
                yield replace(made, label=f"{made.label}, {policy}")


def unions(schema: Schema) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what each type of an object is without a word of people, by pointer and type."""
    return {
        root: {
            tag: {name: node["default"] for name, node in own.items() if "default" in node} | {"type": tag}
            for tag, own in _types(schema, root).items()
        }
        for root in _UNIONS
    }


def one_field(document: Schema, schema: Schema, pointer: str) -> Field | None:
    """Describe the field at a pointer; None when the document has none there."""
    value = value_at(document, pointer)
    node = node_at(schema, document, pointer)
    if node is None or isinstance(value, Mapping):
        return None
    return _field(pointer, value, node, schema)


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
        node = _variant(_deref(node or {}, schema), here, schema)
        here = here.get(part) if isinstance(here, Mapping) else None
        properties = node.get("properties", {})
        extra = node.get("additionalProperties")
        node = properties.get(part) or (extra if isinstance(extra, Mapping) else None) or _by_pattern(node)
        if node is None:
            return None
    return node


def _collect(walk: _Walk, document: Schema, pointer: str, without: tuple[str, ...]) -> None:
    if pointer in without:
        return
    if pointer in _OPTIONAL:
        found = _optional_object(walk, document, pointer)
        walk.fields.extend([found] if found else [])
        return
    if pointer in _UNIONS:
        walk.fields.extend(_union(walk.schema, document, pointer))
        return
    value = value_at(document, pointer)
    node = node_at(walk.schema, document, pointer)
    if isinstance(value, Mapping):
        for key in _ordered(value, node, walk.schema):
            _collect(walk, document, f"{pointer}/{key}", without)
        return
    made = _field(pointer, value, node, walk.schema) if node is not None else None
    if made is not None:
        walk.fields.append(made)


def _ordered(value: Schema, node: Schema | None, schema: Schema) -> list[str]:
    """Keys in the order of the schema; a document that came from a database has lost its own."""
    known = list(_variant(_deref(node or {}, schema), value, schema).get("properties", {}))
    return sorted(value, key=lambda key: known.index(key) if key in known else len(known))


def _optional_object(walk: _Walk, document: Schema, pointer: str) -> Field | None:
    """One field for an object that may be absent."""
    shown = _OPTIONAL[pointer]
    node = node_at(walk.schema, document, pointer) or {}
    inner = _variant(_deref(node, walk.schema), {}, walk.schema)
    leaf = shown.rpartition("/")[2]
    described = inner.get("properties", {}).get(leaf)
    if described is None:
        return None
    made = _field(shown, value_at(document, shown), described, walk.schema)
    return (
        None
        if made is None
        else Field(made.pointer, made.label, made.kind, made.value, optional=True, help="Empty: never.")
    )


def _types(schema: Schema, root: str) -> dict[str, Schema]:
    """Return the fields of each type of an object."""
    node: Schema = schema
    for part in root.strip("/").split("/"):
        node = _deref(node["properties"][part], schema)
    tags = {where: tag for tag, where in node["discriminator"]["mapping"].items()}
    return {tags[option["$ref"]]: _deref(option, schema)["properties"] for option in node["oneOf"]}


def _union(schema: Schema, document: Schema, root: str) -> Iterator[Field]:
    """The choice of a type, then each field of any of them once: those of one type before those of several."""
    types = _types(schema, root)
    yield Field(
        f"{root}/type",
        _LABELS_AT[f"{root}/type"],
        "variant",
        value_at(document, f"{root}/type"),
        tuple(types),
        help=_UNIONS[root],
    )
    nodes = {name: node for own in types.values() for name, node in own.items() if name != "type"}
    when = {name: tuple(tag for tag, own in types.items() if name in own) for name in nodes}
    for name in sorted(nodes, key=lambda name: len(when[name]) > 1):
        pointer = f"{root}/{name}"
        value = value_at(document, pointer)
        made = _field(pointer, nodes[name].get("default") if value is None else value, nodes[name], schema)
        if made is not None:
            yield replace(made, when=when[name])


def _field(pointer: str, value: Any, node: Schema, schema: Schema) -> Field | None:
    base, optional = _without_null(_deref(node, schema), schema)
    leaf = pointer.rpartition("/")[2]
    label = _LABELS_AT.get(pointer) or _LABELS.get(leaf) or leaf.replace("_", " ").capitalize()
    text = " ".join(str(node.get("description") or base.get("description") or "").partition("\n\n")[0].split())
    options = tuple(str(option) for option in base.get("enum", ()))
    if "const" in base or len(options) == 1:
        return None
    if options:
        return Field(pointer, label, "choice", value, options, help=text)
    kind = {"integer": "integer", "number": "number", "boolean": "flag", "string": "text", "object": "pairs"}.get(
        str(base.get("type"))
    )
    low, high = base.get("minimum"), base.get("maximum")
    if kind is None or (low is not None and low == high):
        return None
    return Field(pointer, label, kind, value, (), low, high, optional, text)


def _deref(node: Schema, schema: Schema) -> Schema:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def _without_null(node: Schema, schema: Schema) -> tuple[Schema, bool]:
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        return _deref(options[0], schema), True
    return node, False


def _variant(node: Schema, here: Any, schema: Schema) -> Schema:
    options = node.get("oneOf") or node.get("anyOf")
    if not options:
        return node
    mapping = node.get("discriminator", {}).get("mapping", {})
    tag = here.get("type") if isinstance(here, Mapping) else None
    if tag in mapping:
        return _deref({"$ref": mapping[tag]}, schema)
    return next((_deref(option, schema) for option in options if option.get("type") != "null"), {})


def _by_pattern(node: Schema) -> Schema | None:
    return next(iter(node.get("patternProperties", {}).values()), None)
