"""Instructions of agents: a small template that users write and rollout workers render."""

import time

import pytest
from pydantic import ValidationError

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.instructions import FILTERS, VARIABLES, readable, render_instructions
from flexmarl.contracts.specification.team import AgentSpec

TEAM = ("solver", "reviser")


def rendered(text: str) -> str:
    return render_instructions(text, "solver", TEAM, "You are one of two.")


def test_the_declared_variables_are_what_a_seat_knows() -> None:
    text = "{{ environment }} You, the {{ role | upper }}, are one of {{ team | length }}: {{ team | join(', ') }}."
    assert rendered(text) == "You are one of two. You, the SOLVER, are one of 2: solver, reviser."
    choice = "{% if role == 'solver' %}Answer.{% elif 'critic' in team %}Ask.{% else %}Check.{% endif %}"
    assert rendered(choice) == "Answer."
    assert render_instructions(choice, "reviser", TEAM, "") == "Check."
    assert rendered("plain\nwords\n") == "plain\nwords\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ rule }}", f"rule is not a variable; there are {', '.join(VARIABLES)}"),
        ("{{ role | tojson }}", f"the filter tojson is not allowed; there are {', '.join(FILTERS)}"),
        ("{{ role | join(role) }}", "join is for the team"),
        ("{{ team | join(environment) }}", "join is for the team"),
        ("{% for one in team %}{{ one }}{% endfor %}", "for is not allowed; use variables, if and filters"),
        ("{% set role = 'x' %}", "is not allowed"),
        ("{{ role * 99 }}", "mul is not allowed"),
        ("{{ role ~ role }}", "concat is not allowed"),
        ("{{ role.upper() }}", "is not allowed"),
        ("{{ role.__class__ }}", "getattr is not allowed"),
        ("{{ role[0] }}", "getitem is not allowed"),
        ("{{ range(9) }}", "call is not allowed"),
        ("{% include 'x' %}", "is not allowed"),
        ("{% macro x() %}{% endmacro %}", "is not allowed"),
        ("one\n{{ role", "line 2 cannot be read"),
        ("{{ 1 | length }}", "does not render for a team of solver and reviser"),
    ],
)
def test_what_is_not_declared_is_refused_with_line_rule_and_legal_value(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"line|render") as refused:
        readable(text)
    assert said in str(refused.value)
    with pytest.raises(ValidationError) as at_the_field:
        AgentSpec.model_validate({"instructions": text})
    assert at_the_field.value.errors()[0]["loc"] == ("instructions",)


def test_a_refusal_is_in_plain_words_at_the_field() -> None:
    with pytest.raises(SpecProblems) as refused:
        resolve({"agents": {"solver": {"instructions": "Answer {{ question }}."}}}, template="chat_dataset")
    (problem,) = refused.value.problems
    said = "line 1: question is not a variable; there are role, team, environment. A task is told without one."
    assert (problem.pointer, problem.detail) == ("/agents/solver/instructions", f"instructions: {said}")


def test_the_longest_instructions_are_rendered_at_once() -> None:
    """The sandbox bounds no time: it is the rules that keep what users write from holding a worker."""
    longest = ("{{ team | join('----') | upper }}" * 240)[:8000].rpartition("}}")[0] + "}}"
    readable(longest)
    began = time.process_time()
    assert len(rendered(longest)) < 16 * 8000
    assert time.process_time() - began < 2.0


HOSTILE = {
    "parentheses": "{{ " + "(" * 3900 + "role" + ")" * 3900 + " }}",
    "brackets": "{{ " + "[" * 7900,
    "ifs": "{% if role %}" * 110 + "x" + "{% endif %}" * 110,
    "filters": "{{ role" + "|upper" * 240 + " }}",
    "more filters": "{{ role" + "|upper" * 1300 + " }}",
    "ors": "{% if " + " or ".join(["role"] * 900) + " %}x{% endif %}",
    "nots": "{% if " + "not " * 1900 + "role %}x{% endif %}",
    "choices": "{{ " + "role if role else " * 440 + "role }}",
    "comparisons": "{% if role " + "==role " * 1100 + "%}x{% endif %}",
    "elifs": "{% if role %}" + "{% elif role %}a" * 490 + "{% endif %}",
    "many": "{{role}}" * 990,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_nests_deeply_or_says_too_much_is_refused_at_the_price_of_its_length(text: str) -> None:
    began = time.thread_time()
    with pytest.raises(ValidationError, match=r"nested more than 16 levels|more than 256 expressions") as refused:
        AgentSpec.model_validate({"instructions": text})
    assert time.thread_time() - began < 1.0
    assert refused.value.errors()[0]["loc"] == ("instructions",)


@pytest.mark.parametrize("pattern", ["(" * 1000 + ")" * 1000, "a{99999999999}", "[", "(?P<a>x)(?P<a>y)"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="is not a regular expression"):
        AgentSpec.model_validate({"sampling": {"structured": {"type": "regex", "pattern": pattern}}})


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValidationError, match="at most 8000 characters"):
        AgentSpec.model_validate({"instructions": "x" * 8001})
