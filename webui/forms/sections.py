"""Which fields of a run stand together, which of them are there from the start, and when each is read.

Pure: the resolved document of a template and the schema in, sections out. When a setting is read is in the schema.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from flexmarl.contracts.schema_nodes import Schema
from webui.forms.fields import Field, fields_at, one_field, ways_at
from webui.forms.schema import node_at, value_at


@dataclass(frozen=True, slots=True)
class FormPart:
    """Fields under a heading of their own; without a title they stand alone."""

    title: str
    roles: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Fields that fold together."""

    name: str
    title: str
    parts: tuple[FormPart, ...]
    opened: bool = False

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(field for part in self.parts for field in part.fields)


@dataclass(frozen=True, slots=True)
class AgentRow:
    role: str
    policy: str
    fields: tuple[Field | None, ...]
    """Model, training, most tokens, temperature, learning rate; None where the agent has no such value."""


ESSENTIALS = (
    "/algorithm/advantage/type",
    "/algorithm/loss/type",
    "/mechanisms/lag_policy/bound",
    "/batch/tasks_per_step",
    "/batch/episodes_per_task",
    "/budget/train_steps",
    "/budget/target/value",
)
"""What nearly every new run changes, beside its team."""
_SECTIONS = (
    ("environment", "Environment", ("/environment", "/reward")),
    ("batch", "Batch", ("/batch",)),
    ("algorithm", "Algorithm", ("/algorithm", "/sampling")),
    ("agents", "Agents", ()),
    ("policies", "Policies", ()),
    ("pipeline", "Pipeline", ("/mechanisms",)),
    ("resources", "Resources", ("/resources",)),
    ("budget", "Budget", ("/budget", "/evaluation", "/checkpoints", "/trajectories", "/seed")),
)
_SEATS = ("judge", "aggregator", "generator", "verifier", "planner", "moderator")
_OF_ENVIRONMENT = ("type", "latency", "graph/type", *(f"graph/{seat}" for seat in _SEATS))
_WITHOUT = frozenset({*(f"/environment/{name}" for name in _OF_ENVIRONMENT), "/budget/target", *ESSENTIALS})
_OF_ROW = ("max_tokens", "temperature")
_OF_POLICIES = (
    "model/decoding",
    "model/block",
    "model/denoising_steps",
    "model/confidence",
    "log_probs",
    "precision",
    "activations",
    "tuning",
    "devices",
    "optimizer/final_learning_rate_share",
    "optimizer/weight_decay",
    "optimizer/grad_clip_norm",
)
_HOMES = "/mechanisms/allocation/homes"
_WARMUP = (
    'Supervised steps before step 0, as JSON: {"steps": 50} on what the environment demonstrates, or '
    '{"steps": 50, "demonstrations": {"dataset": {"name": "talks"}}} on conversations of a dataset, or '
    '{"steps": 50, "rows": {"name": "good_run"}} on what an earlier run exported. '
    "Leave empty for none."
)


def agent_rows(document: Schema, schema: Schema) -> list[AgentRow]:
    """One row per agent with the values people change most."""
    rows = []
    for role, agent in document["agents"].items():
        policy = agent.get("policy") or role
        pointers = (
            f"/agents/{role}/trainable",
            f"/agents/{role}/sampling/max_tokens",
            f"/agents/{role}/sampling/temperature",
            f"/policies/{policy}/optimizer/learning_rate",
        )
        found = tuple(one_field(document, schema, pointer) for pointer in pointers)
        rows.append(AgentRow(role, policy, (_model(document, schema, policy), *found)))
    return rows


def _model(document: Schema, schema: Schema, policy: str) -> Field | None:
    """The choice of a policy's model; None for an agent that has no policy of the run."""
    pointer = f"/policies/{policy}/model"
    value = value_at(document, pointer)
    node = node_at(schema, document, pointer) or {}
    return None if value is None else Field(pointer, "Model", "model", value, plain=node.get("default"))


def sections(document: Schema, schema: Schema) -> list[Section]:
    """All other sections, without fields that leave no choice."""
    first = (one_field(document, schema, pointer) for pointer in ESSENTIALS)
    essentials = tuple(_optional(field) for field in first if field is not None)
    found = [Section("essentials", "Essentials", (FormPart("", (), essentials),), opened=True)]
    for name, title, roots in _SECTIONS:
        if name == "policies":
            parts = tuple(_of_policy(document, schema, policy) for policy in document["policies"])
        elif name == "agents":
            parts = tuple(_of_agent(document, schema, role) for role in document["agents"])
        else:
            parts = (FormPart("", (), tuple(f for root in roots for f in fields_at(document, schema, root, _WITHOUT))),)
        if any(part.fields for part in parts):
            found.append(Section(name, title, parts))
    return found


def _optional(field: Field) -> Field:
    """An object that may be absent has one field, which may be empty."""
    return (
        replace(field, optional=True, help="Leave empty to run all steps.")
        if field.pointer == "/budget/target/value"
        else field
    )


def _of_agent(document: Schema, schema: Schema, role: str) -> FormPart:
    """How replies of an agent are sampled, beside what its row says."""
    at = f"/agents/{role}/sampling"
    return FormPart(role, (), tuple(fields_at(document, schema, at, frozenset({f"{at}/{n}" for n in _OF_ROW}))))


def _of_policy(document: Schema, schema: Schema, policy: str) -> FormPart:
    """How a policy is computed and where it is trained."""
    at = f"/policies/{policy}"
    fields = [field for name in _OF_POLICIES for field in fields_at(document, schema, f"{at}/{name}", frozenset())]
    labels = {f"{at}/devices/least": "Min devices", f"{at}/devices/most": "Max devices"}
    named = [replace(field, of=policy, label=labels.get(field.pointer, field.label)) for field in fields]
    warmup = value_at(document, f"{at}/warmup")
    named.append(
        Field(f"{at}/warmup", "Warm-up", "json", warmup, optional=True, of=policy, help=_WARMUP, absent="None")
    )
    homes = value_at(document, f"{_HOMES}/{policy}") or ()
    named.append(
        Field(
            f"{_HOMES}/{policy}",
            "Trainer devices",
            "list",
            tuple(homes),
            optional=True,
            of=policy,
            ways=ways_at(_HOMES, node_at(schema, document, _HOMES) or {}),
            help="Comma-separated indices of the run's trainer devices, from 0; as many as the minimum. "
            "Leave empty for the devices with the fewest policies.",
        )
    )
    roles = tuple(role for role, agent in document["agents"].items() if (agent.get("policy") or role) == policy)
    return FormPart(policy, roles, tuple(named))


def reads(fields: Iterable[Field]) -> dict[str, dict[str, Any]]:
    """Return for each setting that is read under some choices only: in which ways, and whether its object's type
    brings and takes it (`own`), and whether its default is to be absent."""
    return {
        field.pointer: {
            "ways": [list(way) for way in field.ways],
            "own": bool(field.when) and all(len(way) == 1 for way in field.ways),
            "absent": field.kind == "list",
        }
        for field in fields
        if field.ways
    }


def plain(fields: Iterable[Field]) -> dict[str, Any]:
    """Return what each field is without a word of people."""
    return {field.pointer: field.plain for field in fields}


def every_field(rows: Iterable[AgentRow], found: Iterable[Section]) -> Iterator[Field]:
    """Return all fields of the page."""
    yield from (field for row in rows for field in row.fields if field is not None)
    yield from (field for section in found for field in section.fields)
