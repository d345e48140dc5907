"""Which settings are read: the one list names real fields, agrees with the refusals, and refuses what it says."""

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.reads import READ, REFUSED, missing, unread, value_of
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification import ExperimentSpec
from tests.unit.orchestrator.fake_cluster import make_spec

POLICY = "speaker"
WORLDS: dict[str, dict[str, object]] = {
    "as it comes": {},
    "gae": {"algorithm__advantage": {"type": "gae"}},
    "best_worst": {"algorithm__advantage": {"type": "best_worst"}},
    "pairs": {"algorithm__loss": {"type": "online_dpo"}, "algorithm__advantage": {"type": "best_worst"}},
    "sapo": {"algorithm__loss": {"type": "sapo"}},
    "maporl": {"algorithm__advantage": {"per_turn": True}, "algorithm__shaping": {"type": "maporl"}},
    "static": {"mechanisms__allocation": {"type": "static"}},
    "mini batches": {"mechanisms__trainer_protocol": "mini_batch", "mechanisms__lag_policy": {"bound": 3}},
    "an adapter": {"policies": {POLICY: {"tuning": {"type": "lora"}}}},
    "ordered": {"mechanisms__ordered": True},
}


def named(pointer: str) -> str:
    return pointer.replace("*", POLICY)


def test_every_pointer_names_a_field() -> None:
    spec = make_spec(agents={POLICY: {}, "listener": {}})
    choices = {choice.pointer for ways in READ.values() for way in ways for choice in way}
    for pointer in {*READ, *choices}:
        above, _, leaf = named(pointer).rpartition("/")
        assert leaf in type(value_of(spec, above)).model_fields, pointer
    assert set(REFUSED) <= set(READ)


@pytest.mark.parametrize("world", WORLDS)
def test_what_is_not_read_breaks_no_rule_as_it_comes(world: str) -> None:
    """A form that hides a setting and sends its default is not refused for it."""
    spec = make_spec(**WORLDS[world])
    wrong = {problem.pointer for problem in broken_rules(spec)}
    assert not {pointer for pointer in REFUSED if missing(spec, pointer) and pointer in wrong}
    assert wrong == set()


def test_a_written_value_that_nobody_reads_is_refused_with_a_way_out() -> None:
    sapo = {"type": "sapo", "norm_tokens": 16}
    spec = make_spec(algorithm__loss=sapo)
    assert {(p.pointer, p.code, p.hint) for p in unread(spec)} == {
        ("/algorithm/loss/norm_tokens", "not_read", "Remove it, or set 1024."),
    }


REQUIRED = {
    "/agents/speaker/external/url": {"agents": {"speaker": {"external": {"model": "m"}}, "listener": {}}},
    "/agents/speaker/external/model": {"agents": {"speaker": {"external": {"url": "https://a.example/v1"}}}},
    "/policies/speaker/model/path": {"policies": {"speaker": {"model": {"type": "folder"}}}},
    "/policies/speaker/model/run": {"policies": {"speaker": {"model": {"type": "checkpoint", "step": 1}}}},
    "/policies/speaker/model/step": {"policies": {"speaker": {"model": {"type": "checkpoint", "run": "a"}}}},
    "/policies/speaker/warmup/steps": {"policies": {"speaker": {"warmup": {}}}},
    "/reward/url": {"reward": {"type": "service"}},
    "/reward/name": {"reward": {"type": "function"}},
    "/environment/latency/scale_s": {"environment": {"type": "reference_game", "latency": {}}},
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
    required = {name for node in (schema, *schema["$defs"].values()) for name in node.get("required", ())}
    assert required == {pointer.rpartition("/")[2] for pointer in REQUIRED} - {"type"}
