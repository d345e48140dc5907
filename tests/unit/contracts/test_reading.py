"""When settings are read: said at the field with pointers of real fields; what is written and not read is refused."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.schema_nodes import by_pattern, deref
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.reading import KEY
from tests.unit.orchestrator.fake_cluster import make_spec

POLICY = "speaker"
WORLDS: dict[str, dict[str, object]] = {
    "as it comes": {},
    "gae": {"algorithm__advantage": {"type": "gae"}},
    "habc": {"algorithm__advantage": {"type": "habc"}},
    "best_worst": {"algorithm__advantage": {"type": "best_worst"}},
    "pairs": {"algorithm__loss": {"type": "online_dpo"}, "algorithm__advantage": {"type": "best_worst"}},
    "sapo": {"algorithm__loss": {"type": "sapo"}},
    "maporl": {"algorithm__advantage": {"per_turn": True}, "algorithm__shaping": {"type": "maporl"}},
    "static": {"mechanisms__allocation": {"type": "static"}},
    "mini batches": {"mechanisms__trainer_protocol": "mini_batch", "mechanisms__lag_policy": {"bound": 3}},
    "an adapter": {"policies": {POLICY: {"tuning": {"type": "lora"}}}},
    "ordered": {"mechanisms__ordered": True},
}


SCHEMA = ExperimentSpec.model_json_schema()


def objects(node: Mapping[str, Any], pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """List the objects of a schema with their pointers, each type of a union; `*` stands for what is named freely."""
    node = deref(node, SCHEMA)
    for one in (*node.get("oneOf", ()), *node.get("anyOf", ())):
        yield from objects(one, pointer)
    named = by_pattern(node)
    if named is not None:
        yield from objects(named, f"{pointer}/*")
    if "properties" in node:
        yield pointer, node
        for name, own in node["properties"].items():
            yield from objects(own, f"{pointer}/{name}")


def test_every_condition_names_a_field_and_its_values() -> None:
    found = list(objects(SCHEMA))
    fields: dict[str, list[Mapping[str, Any]]] = {}
    for pointer, node in found:
        for name, own in node["properties"].items():
            fields.setdefault(f"{pointer}/{name}", []).append(deref(own, SCHEMA))
    looked_at = 0
    for pointer, node in found:
        for own in node["properties"].values():
            for condition in (condition for way in own.get(KEY, ()) for condition in way):
                name = condition["pointer"]
                asked = fields[name if name.startswith("/") else f"{pointer}/{name}"]
                words = {
                    word
                    for one in asked
                    for word in (*one.get("enum", ()), *([one["const"]] if "const" in one else ()))
                }
                assert not words or set(condition["values"]) <= words, (pointer, condition)
                looked_at += 1
    assert looked_at > 30


@pytest.mark.parametrize("world", WORLDS)
def test_a_setting_as_it_comes_is_refused_by_nobody(world: str) -> None:
    """A form that hides a setting and sends its default is not refused for it."""
    assert broken_rules(make_spec(**WORLDS[world])) == []


@pytest.mark.parametrize(
    ("change", "pointer", "hint"),
    [
        ({"loss": {"type": "sapo", "norm_tokens": 16}}, "/algorithm/loss/norm_tokens", "Remove it, or set 1024."),
        ({"loss": {"type": "gspo", "norm_tokens": 16}}, "/algorithm/loss/norm_tokens", "Remove it, or set 1024."),
        (
            {"advantage": {"per_turn": True, "gamma": 0.5}, "shaping": {"type": "maporl"}},
            "/algorithm/advantage/gamma",
            "Remove it, or set 1.0.",
        ),
        (
            {"advantage": {"per_turn": True, "turn_rewards": "joint"}, "shaping": {"type": "marti"}},
            "/algorithm/advantage/turn_rewards",
            "Remove it, or set own.",
        ),
    ],
)
def test_a_written_value_that_nobody_reads_is_refused_with_a_way_out(
    change: dict[str, Any], pointer: str, hint: str
) -> None:
    spec = make_spec(**{f"algorithm__{name}": value for name, value in change.items()})
    assert (pointer, "not_read", hint) in {(p.pointer, p.code, p.hint) for p in broken_rules(spec)}


def structured(kind: str) -> dict[str, Any]:
    return {"trainable": False, "sampling": {"structured": {"type": kind}}}


REQUIRED = {
    "/agents/speaker/external/url": {"agents": {"speaker": {"external": {"model": "m"}}, "listener": {}}},
    "/agents/speaker/external/model": {"agents": {"speaker": {"external": {"url": "https://a.example/v1"}}}},
    "/agents/speaker/definition/name": {"agents": {"speaker": {"definition": {"version": 1}}, "listener": {}}},
    "/policies/speaker/model/path": {"policies": {"speaker": {"model": {"type": "folder"}}}},
    "/policies/speaker/model/name": {"policies": {"speaker": {"model": {"type": "package"}}}},
    "/policies/speaker/model/run": {"policies": {"speaker": {"model": {"type": "checkpoint", "step": 1}}}},
    "/policies/speaker/model/step": {"policies": {"speaker": {"model": {"type": "checkpoint", "run": "a"}}}},
    "/policies/speaker/warmup/steps": {"policies": {"speaker": {"warmup": {}}}},
    "/policies/speaker/warmup/demonstrations/dataset": {
        "policies": {"speaker": {"warmup": {"steps": 1, "demonstrations": {}}}}
    },
    "/agents/speaker/sampling/structured/choices": {"agents": {"speaker": structured("choice"), "listener": {}}},
    "/agents/speaker/sampling/structured/pattern": {"agents": {"speaker": structured("regex"), "listener": {}}},
    "/agents/speaker/sampling/structured/of": {"agents": {"speaker": structured("json_schema"), "listener": {}}},
    "/reward/url": {"reward": {"type": "service"}},
    "/environment/latency/scale_s": {"environment": {"type": "reference_game", "latency": {}}},
    "/environment/tools/servers/0/package": {
        "environment": {"type": "dataset", "tools": {"servers": [{"type": "mcp"}]}},
        "agents": {"solver": {}},
    },
    "/resources/rollout_devices/min": {"resources": {"rollout_devices": {"max": 2}}},
    "/resources/rollout_devices/max": {"resources": {"rollout_devices": {"min": 1}}},
    "/environment/type": {"environment": {}},
    "/environment": {"environment": None},
    "/agents": {"agents": None},
}


@pytest.mark.parametrize("pointer", REQUIRED)
def test_what_is_required_is_refused_with_an_example(pointer: str) -> None:
    whole = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
    document = {key: value for key, value in {**whole, **REQUIRED[pointer]}.items() if value is not None}
    with pytest.raises(SpecProblems) as caught:
        resolve(document)
    own = next(problem for problem in caught.value.problems if problem.pointer == pointer)
    assert own.code == "required"
    assert own.hint.endswith(".")


def test_every_required_field_is_looked_at() -> None:
    schema = ExperimentSpec.model_json_schema()
    written = [node for name, node in schema["$defs"].items() if name != "ModelShape"]  # that one is set at creation
    required = {name for node in (schema, *written) for name in node.get("required", ())}
    assert required == {pointer.rpartition("/")[2] for pointer in REQUIRED} - {"type"}
