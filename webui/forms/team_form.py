"""The form of a team: its graph, its seats, and for each seat the agent and the policy that take it.

Pure: what was written and the JSON schema of `TeamSettings` in, what the page shows out. A graph of a plug-in has its
fields without a word here: a setting that holds seats is known by their schema, every other one is a field. What no
field can hold is shown as JSON, and settings that the schema does not know stay as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from flexmarl.contracts.schema_nodes import Schema, deref
from flexmarl.contracts.specification.graphs import GRAPH
from flexmarl.contracts.specification.team_settings import TeamSettings
from webui.forms.fields import Field
from webui.forms.open_fields import label_of, open_fields
from webui.forms.schema import without_null
from webui.forms.sections import FormPart

NO_GRAPH = ""
"""The kind of a team whose environment says who speaks when."""
_LABELS = {
    "sees": "Reads", "reward": "Paid by", "does": "Task", "tokens": "Token budget", "trainable": "Trained",
    "least": "Min devices", "most": "Max devices", "context_tokens": "Context, tokens",
    "timeout_s": "Timeout, s", "url": "URL", "log_probs": "Log-probabilities",
}  # fmt: skip
_MAIN_OF_AGENT = ("trainable", "sampling/temperature", "sampling/max_tokens", "instructions")
_APART_OF_AGENT = ("definition", "policy", "external")
_MAIN_OF_POLICY = ("model", "precision", "tuning/type", "tuning/rank", "tuning/alpha", "optimizer/learning_rate")
_KINDS = {
    "sequence": "Sequence: one after the other",
    "debate": "Debate: rounds, then a judge or the majority",
    "mixture": "Mixture of agents: proposers, then an aggregator",
    "verify": "Generator and verifier",
    "hub": "Hub: a planner asks workers",
    "dialogue": "Dialogue with a moderator",
}
"""What people call the graphs; one of a plug-in is called by its own name."""
_NEWEST = 50
"""Versions of a definition that are offered."""


@dataclass(frozen=True, slots=True)
class SeatSlot:
    """A setting of a graph that holds seats."""

    name: str
    many: bool
    least: int
    most: int
    help: str
    seat: Schema
    plain: tuple[Mapping[str, Any], ...]
    """The seats that it has without a word of people."""


@dataclass(frozen=True, slots=True)
class SeatForm:
    """A seat with all that is set for it."""

    name: str
    pointer: str
    """Of the seat in the graph; of its agent where there is no graph."""
    parts: tuple[FormPart, ...]
    more: tuple[Field, ...]
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class SlotForm:
    """The seats of a setting of the graph."""

    slot: SeatSlot
    title: str
    one: str
    """What one of its seats is called."""
    seats: tuple[SeatForm, ...]

    @property
    def has_room(self) -> bool:
        return len(self.seats) < self.slot.most

    @property
    def may_lose(self) -> bool:
        return len(self.seats) > self.slot.least


@dataclass(frozen=True, slots=True)
class TeamForm:
    kind: str
    kinds: tuple[tuple[str, str], ...]
    """(type, what it is called) of every graph."""
    summary: str
    fields: tuple[Field, ...]
    slots: tuple[SlotForm, ...]
    known: bool = True
    """Whether the graph is one that is installed here."""

    @property
    def roles(self) -> list[str]:
        return [seat.name for slot in self.slots for seat in slot.seats]


@cache
def team_schema() -> Schema:
    return TeamSettings.model_json_schema()


def graph_nodes(schema: Schema) -> dict[str, Schema]:
    """Return the schema of each graph by its type."""
    node, _ = without_null(schema["properties"]["graph"], schema)
    mapping = node["discriminator"]["mapping"]
    return {name: deref({"$ref": mapping[name]}, schema) for name in GRAPH.variants() if name in mapping}


def slots_of(graph: Schema, schema: Schema) -> list[SeatSlot]:
    """Return the settings of a graph that hold seats, in their order."""
    return [slot for name, node in graph["properties"].items() if (slot := _slot(name, node, schema)) is not None]


def kinds_for_page(schema: Schema) -> dict[str, dict[str, Any]]:
    """Return for each graph where its seats are and what else it has, as the page takes it."""
    found = {}
    for kind, graph in graph_nodes(schema).items():
        slots = slots_of(graph, schema)
        apart = {"type", *(slot.name for slot in slots)}
        found[kind] = {
            "slots": [_for_page(slot) for slot in slots],
            "settings": [name for name in graph["properties"] if name not in apart],
        }
    return found


def _for_page(slot: SeatSlot) -> dict[str, Any]:
    return {
        "name": slot.name,
        "many": slot.many,
        "least": slot.least,
        "most": slot.most,
        "has": list(slot.seat["properties"]),
        "plain": list(slot.plain),
    }


def team_form(settings: Mapping[str, Any], newest: Mapping[str, int]) -> TeamForm:
    """Return the form of settings, right or wrong. `newest`: the newest version of each definition of the project."""
    schema = team_schema()
    nodes = graph_nodes(schema)
    graph, agents = settings.get("graph"), _mapping(settings.get("agents"))
    kinds = ((NO_GRAPH, "None: the environment says it"), *((name, _title(name)) for name in nodes))
    if graph is None:
        slot = SeatSlot("", True, 1, 16, "An agent for each role of the environment.", {"properties": {}}, ())
        seats = _seats(slot, [{"name": name} for name in agents], "/agents", settings, newest)
        return TeamForm(NO_GRAPH, kinds, "The environment of a run says who speaks when.", (),
                        (SlotForm(slot, "Agents", "agent", seats),))  # fmt: skip
    kind = str(_mapping(graph).get("type", GRAPH.builtins[0].plugin_name()))
    if kind not in nodes or not isinstance(graph, Mapping):
        whole = Field("/graph", "Graph as JSON", "json", graph)
        return TeamForm(kind, (*kinds, (kind, kind)), "This graph is not installed here.", (whole,), (), False)
    node = nodes[kind]
    slots = slots_of(node, schema)
    apart = {"type", *(slot.name for slot in slots)}
    fields = tuple(
        _labelled(field)
        for name, child in sorted(node["properties"].items(), key=lambda one: one[0] == "tokens")
        if name not in apart
        for field in open_fields(f"/graph/{name}", child, graph.get(name), schema)
    )
    summary = " ".join(str(node.get("description", "")).partition("\n\n")[0].split())
    shown = tuple(_slot_form(slot, graph, settings, newest) for slot in slots)
    return TeamForm(kind, kinds, summary, fields, shown)


def _title(kind: str) -> str:
    return _KINDS.get(kind) or kind.replace("_", " ").capitalize()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _slot(name: str, node: Schema, schema: Schema) -> SeatSlot | None:
    """Return what holds seats; None for any other setting."""
    many = node.get("type") == "array"
    inner = node.get("items", {}) if many else node
    options = inner.get("anyOf", [inner])
    found = (deref(option, schema) for option in options)
    seat = next((one for one in found if {"name", "sees"} <= set(one.get("properties", {}))), None)
    if seat is None:
        return None
    optional = any(option.get("type") == "null" for option in options)
    given = node.get("default") or []
    plain = tuple(_short(one, seat) for one in (given if many else [given] if given else []))
    least, most = (node.get("minItems", 0), node.get("maxItems", 16)) if many else (0 if optional else 1, 1)
    help_text = " ".join(str(node.get("description") or "").split())
    return SeatSlot(name, many, least, most, help_text, seat, plain)


def _short(given: Any, seat: Schema) -> dict[str, Any]:
    """Return a seat with its name and what is not as by default."""
    whole = {"name": given} if isinstance(given, str) else dict(given)
    return {
        name: value
        for name, value in whole.items()
        if name == "name" or value != seat["properties"].get(name, {}).get("default")
    }


def _slot_form(
    slot: SeatSlot, graph: Mapping[str, Any], settings: Mapping[str, Any], newest: Mapping[str, int]
) -> SlotForm:
    given = graph.get(slot.name, list(slot.plain) if slot.many else next(iter(slot.plain), None))
    listed = given if isinstance(given, list | tuple) else [] if given is None else [given]
    seats = [_short(one, {"properties": {}}) for one in listed if isinstance(one, str | Mapping)]
    at = f"/graph/{slot.name}"
    title = "Seats" if slot.name == "order" else label_of(at)
    one = "seat" if slot.name == "order" else slot.name.replace("_", " ").removesuffix("s" if slot.many else "")
    return SlotForm(slot, title, one, _seats(slot, seats, at, settings, newest))


def _seats(
    slot: SeatSlot,
    seats: Sequence[Mapping[str, Any]],
    at: str,
    settings: Mapping[str, Any],
    newest: Mapping[str, int],
) -> tuple[SeatForm, ...]:
    made = []
    for index, seat in enumerate(seats):
        name = str(seat.get("name", ""))
        pointer = f"{at}/{name}" if not slot.name else f"{at}/{index}" if slot.many else at
        mine, more = _of_agent(name, settings, newest)
        parts = (_in_graph(slot, seat, name, pointer, settings), *mine)
        made.append(SeatForm(name, pointer, parts, more, index == 0, index == len(seats) - 1))
    return tuple(made)


def _in_graph(
    slot: SeatSlot, seat: Mapping[str, Any], name: str, pointer: str, settings: Mapping[str, Any]
) -> FormPart:
    schema = team_schema()
    fields = [Field(f"{pointer}/name", "Name", "name", name, help="Lower case, digits and _.")]
    for key, node in slot.seat["properties"].items():
        if key == "name":
            continue
        own = f"{pointer}/{key}"
        words = _words_or_names(node)
        for field in open_fields(own, node, None if words else seat.get(key), schema):
            made = _labelled(field)
            if words:
                made = replace(made, kind="sees", options=words, value=seat.get(key))
            fields.append(_plainly(made, node.get("default")))
    return FormPart("", (), tuple(sorted(fields, key=lambda one: one.name == "sees")))


def _plainly(field: Field, plain: Any) -> Field:
    """Offer what holds by default once: nothing stands under a graph, so that to write it says the same."""
    if field.kind not in {"choice", "sees"} or plain is None:
        return field
    options = tuple(option for option in field.options if option != plain)
    return replace(field, options=options, value=None if field.value == plain else field.value, absent=str(plain))


def _words_or_names(node: Schema) -> tuple[str, ...]:
    """Return the words of a setting that is one of them or a list of seats; empty for any other."""
    options = node.get("anyOf", ())
    words = next((option["enum"] for option in options if "enum" in option), ())
    return tuple(words) if any(option.get("type") == "array" for option in options) else ()


def _of_agent(
    name: str, settings: Mapping[str, Any], newest: Mapping[str, int]
) -> tuple[tuple[FormPart, ...], tuple[Field, ...]]:
    """Return the fields of the agent that takes a seat and of its policy: those that stand first, and the others."""
    schema = team_schema()
    agent = _mapping(_mapping(settings.get("agents")).get(name))
    at = f"/agents/{name}"
    named = _mapping(agent.get("definition")).get("name")
    absent = f"as in {named}" if named else ""
    node = schema["$defs"]["AgentSpec"]
    kept = {**node, "properties": {k: v for k, v in node["properties"].items() if k not in _APART_OF_AGENT}}
    fields = [_labelled(field) for field in open_fields(at, kept, agent, schema, absent)]
    main, more = _parted(fields, at, _MAIN_OF_AGENT)
    first = FormPart("Agent", (), (*_definition(at, agent, newest), *main))
    policy, rest = _of_policy(name, agent, settings)
    return (first, policy), (*more, *rest)


def _definition(at: str, agent: Mapping[str, Any], newest: Mapping[str, int]) -> Iterator[Field]:
    named = _mapping(agent.get("definition"))
    name, version = named.get("name"), named.get("version")
    yield Field(f"{at}/definition/name", "Definition", "definition", name,
                (str(name),) if str(name) in newest else (), optional=True, absent="none",
                help="A saved agent whose settings it takes; what is set here is laid over them.")  # fmt: skip
    if name:
        last = newest.get(str(name), 0)
        numbers = [str(one) for one in range(last, max(last - _NEWEST, 0), -1)]
        if version is not None and str(version) not in numbers:
            numbers.append(str(version))
        yield Field(f"{at}/definition/version", "Version", "version", version, tuple(numbers), optional=True,
                    absent=f"newest ({last})" if last else "newest",
                    help="The newest where none is chosen; pinned when a run is created.")  # fmt: skip


def _of_policy(name: str, agent: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[FormPart, tuple[Field, ...]]:
    """Return what a seat acts with: an external model, another seat's policy, or one of its own with its settings."""
    agents = _mapping(settings.get("agents"))
    policy = str(agent.get("policy") or name)
    acting = {
        role: str(_mapping(one).get("policy") or role)
        for role, one in {**agents, name: agent}.items()
        if _mapping(one).get("external") is None
    }
    others = tuple(sorted({*acting.values(), *acting} - {name}))
    acts = Field(f"/agents/{name}/policy", "Acts with", "acts", agent.get("policy"), others, optional=True,
                 absent=f"own policy {name}", help="Seats with one policy share its weights.")  # fmt: skip
    if agent.get("external") is not None:
        acts = replace(acts, value="external")
        at, node = f"/agents/{name}/external", team_schema()["$defs"]["ExternalModel"]
        of_model = open_fields(at, node, agent["external"], team_schema())
        return FormPart("External model", (), (acts, *map(_labelled, of_model))), ()
    sharing = tuple(role for role, one in acting.items() if one == policy)
    owner = policy if policy in sharing else sharing[0]
    if owner != name:
        return FormPart(f"Policy {policy}, set at {owner}", sharing, (acts,)), ()
    at, value = f"/policies/{policy}", _mapping(settings.get("policies")).get(policy)
    fields = [_labelled(field) for field in _policy_fields(at, value)]
    main, more = _parted(fields, at, _MAIN_OF_POLICY)
    return FormPart(f"Policy {policy}", sharing, (acts, *main)), more


def _policy_fields(at: str, value: Any) -> Iterator[Field]:
    schema = team_schema()
    node = schema["$defs"]["PolicySpec"]
    if not (value is None or isinstance(value, Mapping)):
        yield Field(at, "Policy as JSON", "json", value)
        return
    for key, child in node["properties"].items():
        given = _mapping(value).get(key)
        if key != "model":
            yield from open_fields(f"{at}/{key}", child, given, schema)
            continue
        yield Field(f"{at}/model", "Model", "model", given, optional=True, absent="factory S (default)")
        # What the choice of a model says already has no field beside it.
        said = {"name", "version", "project", "size", "digest", "parameters", "shape", "source"}
        for field in open_fields(f"{at}/model", child, given, schema):
            if field.kind != "kind" and not said & set(field.pointer.removeprefix(f"{at}/model/").split("/")):
                yield replace(field, label=f"Model: {field.label.lower()}")


def _parted(fields: Sequence[Field], at: str, first: Sequence[str]) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Return the fields that stand first, in that order, and the others; a part of a value goes with the whole."""

    def place(field: Field) -> int:
        own = field.pointer.removeprefix(f"{at}/")
        return next((index for index, name in enumerate(first) if f"{own}/".startswith(f"{name}/")), len(first))

    main = [field for field in fields if place(field) < len(first)]
    return tuple(sorted(main, key=place)), tuple(field for field in fields if place(field) == len(first))


def _labelled(field: Field) -> Field:
    label = _LABELS.get(field.name)
    return field if label is None or ":" in field.label else replace(field, label=label)
