"""Home: what needs somebody, what trains, what waits; the first visit; New run beside its specification."""

import json
import re

import pytest
from django.utils import timezone

from flexmarl.controlplane.common.store import store_connection
from tests.support.controlplane import set_state
from tests.support.markup import markup
from tests.support.statements import at_most

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(client, editor):
    client.force_login(editor)
    return client


def steps(run, values: list[float], status: str = "running") -> None:
    for step, value in enumerate(values, 1):
        store_connection().execute(
            "INSERT INTO store.metric (run_id, name, step, value, at) VALUES (%s, 'reward/team', %s, %s, now())",
            [run.no, step, value],
        )
    set_state(run, step=len(values), status=status, status_since=timezone.now())


def test_the_first_visit_offers_the_demo_to_those_who_may_create(browser, person, client) -> None:
    page = markup(browser.get("/"))
    assert "Train a team of agents" in page
    assert 'data-start-template="reference_game" data-project="default"' in page
    client.force_login(person("viewer"))
    seen = markup(client.get("/"))
    assert "You may not create runs in any project" in seen
    assert "data-start-template" not in seen


def test_cards_average_the_last_twenty_steps(browser, editor, make_run) -> None:
    run = make_run(editor, "running", name="rising")
    steps(run, [0.1] * 20 + [0.5] * 20)
    [card] = browser.get("/").context["cards"]
    assert (round(card["reward"], 6), round(card["change"], 6)) == (0.5, 0.4)
    assert card["run"]["key"] == run.key
    assert card["spark"] is not None


def test_failed_and_paused_runs_need_somebody(browser, editor, person, make_run) -> None:
    failed, paused = make_run(editor, "failed"), make_run(editor, "paused")
    make_run(person("editor"), "failed")
    context = browser.get("/").context
    assert [need["title"].split(" at ")[0] for need in context["needs"]] == [
        f"{paused.key} is paused", f"{failed.key} failed",
    ]  # fmt: skip
    assert context["needs"][0]["resume"] == str(paused.id)
    assert context["summary"] == "2 items need attention, 0 runs are training"


def test_archived_runs_and_other_projects_stay_away(browser, editor, make_run, api) -> None:
    run, other = make_run(editor, "failed"), make_run(editor, "running")
    api.post(f"/api/v1/runs/{run.key}/actions/archive")
    context = browser.get("/").context
    assert context["needs"] == []
    assert [card["run"]["key"] for card in context["cards"]] == [other.key]


def test_home_costs_as_many_queries_for_twelve_runs_as_for_one(browser, editor, make_run) -> None:
    for index in range(8):
        steps(make_run(editor, "running", name=f"run {index}"), [0.1, 0.2, 0.3])
    browser.get("/")
    with at_most(16):
        assert len(browser.get("/", headers={"X-Part": "1"}).context["cards"]) == 8


def test_drafts_wait_last_and_say_that_they_were_not_started(browser, editor, make_run) -> None:
    draft, queued = make_run(editor), make_run(editor, "queued")
    rows = browser.get("/").context["waiting"]
    assert {row["key"] for row in rows} == {draft.key, queued.key}
    assert {row["text"] for row in rows if row["status"] == "draft"} == {"Not started."}


def test_new_run_offers_only_projects_that_one_may_write_in(browser, editor, make_run, person) -> None:
    context = browser.get("/runs/new?template=reference_game").context
    assert (context["writable"], context["chosen"]) == (["default"], "default")
    run = make_run(editor, name="origin")
    cloned = browser.get(f"/runs/new?from={run.key}").context
    assert cloned["data"]["parent"] == {"key": run.key, "id": str(run.id)}
    assert json.dumps(cloned["data"]["document"]["batch"], sort_keys=True) == json.dumps(
        run.spec["batch"], sort_keys=True
    )


def test_every_field_says_its_legal_range(browser) -> None:
    page = markup(browser.get("/runs/new?template=reference_game"))
    assert re.search(r"Maximum own lag in versions; [^\"<]* From 0 to 64\.", page)
