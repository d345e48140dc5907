"""The list of runs as a page: the address holds all of it, and fifty rows cost as many queries as one."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.http import QueryDict

from flexmarl.controlplane.runs.models import Run, SavedView
from tests.support.controlplane import set_state
from tests.support.markup import markup
from tests.support.statements import at_most
from webui import runlist

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def browser(client, editor):
    client.force_login(editor)
    return client


def text(answer) -> str:
    assert answer.status_code == 200, answer.content[:500]
    return markup(answer)


def test_the_page_and_its_part_show_the_same_rows(browser, editor, make_run) -> None:
    run = make_run(editor, "running", name="n" * 64)
    page, part = text(browser.get("/runs")), text(browser.get("/runs", headers={"X-Part": "1"}))
    assert run.key in page
    assert f'id="row-{run.id}"' in part
    assert "<html" not in part
    assert "n" * 64 in part


@pytest.mark.parametrize(
    "query", ["", "?status=running&status=failed&tag=x&q=run", "?ordering=-reward", "?archived=any"]
)
def test_fifty_rows_cost_as_many_queries_as_one(browser, editor, make_run, query) -> None:
    for index in range(8):
        run = make_run(editor, "running", name=f"run {index}")
        set_state(run, step=3)
        Run.objects.filter(pk=run.pk).update(tags=["x"])
    browser.get("/runs")
    with at_most(14):
        assert text(browser.get(f"/runs{query}", headers={"X-Part": "1"})).count("tr id=") == 8


def test_views_count_and_mark_the_one_shown(browser, editor, person, make_run) -> None:
    make_run(editor, "failed"), make_run(editor, "running"), make_run(person("editor"), "running")
    context = browser.get("/runs?owner=edith").context
    assert {view["label"]: view["count"] for view in context["views"]} == {
        "All": 3, "Mine": 2, "Active": 2, "Waiting": 0, "Paused": 0, "Failed": 1,
    }  # fmt: skip
    assert [view["label"] for view in context["views"] if view["on"]] == ["Mine"]
    assert context["total"] == 2


def test_a_wrong_filter_says_so_and_what_is_legal(browser, editor, make_run) -> None:
    make_run(editor)
    for query in ("status=sleeping", "colour=red", "ordering=colour", "config.a__gte=x"):
        page = text(browser.get(f"/runs?{query}"))
        assert "Invalid filter" in page, query
    assert "Legal: draft" in text(browser.get("/runs?status=sleeping"))


def test_empty_lists_say_why(browser) -> None:
    assert "No runs yet" in text(browser.get("/runs"))
    assert "No run matches" in text(browser.get("/runs?q=nothing"))


def test_pages_follow_one_another_without_gap(browser, editor, make_run, monkeypatch) -> None:
    monkeypatch.setattr("webui.views.runs.PAGE", 2)
    for index in range(5):
        make_run(editor, name=f"run {index}")
    seen, address = [], "/runs?ordering=name"
    while address:
        context = browser.get(address).context
        seen += [row["name"] for row in context["rows"]]
        address = context.get("next_url", "")
    assert seen == [f"run {index}" for index in range(5)]
    first = browser.get(browser.get("/runs?ordering=name").context["next_url"]).context["previous_url"]
    assert [row["name"] for row in browser.get(first).context["rows"]] == ["run 0", "run 1"]


def test_the_file_has_the_columns_shown_and_no_formulas(browser, editor, make_run) -> None:
    make_run(editor, name="=HYPERLINK(1)")
    answer = browser.get("/runs?format=csv&columns=progress,tags")
    lines = list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())))
    assert lines[0] == ["key", "name", "status", "reason", "step", "max_steps", "tags"]
    assert lines[1][1] == "'=HYPERLINK(1)"
    assert answer["Content-Type"].startswith("text/csv")


def test_the_filter_form_leads_to_the_address_it_means(browser) -> None:
    answer = browser.get("/runs?q=a&add=config&path=batch.tasks_per_step&sign=__gte&value=16")
    assert answer.status_code == 302
    assert QueryDict(answer["Location"].partition("?")[2]).dict() == {
        "q": "a",
        "config.batch.tasks_per_step__gte": "16",
    }
    assert "is not a time" in text(browser.get("/runs?add=created_at__gte&value=soon"))


@pytest.mark.parametrize(
    ("form", "meant"),
    [
        ("add=status&value=failed&status=running", {"status": ["running", "failed"]}),
        ("add=archived&value=any", {"archived": ["any"]}),
        ("add=metric&path=reward/team&sign=__lte&value=0.5", {"metric.reward/team:last__lte": ["0.5"]}),
        ("add=created_at__gte&value=14d", {"created_at__gte": [(NOW - timedelta(days=14)).isoformat()]}),
        ("add=created_at__gte&value=2026-01-31", {"created_at__gte": ["2026-01-31T00:00:00+00:00"]}),
        ("add=config&path=a;b&value=1", None),
        ("add=status&value=", None),
        ("add=nothing&value=1", None),
    ],
)
def test_new_filters(form, meant) -> None:
    query, wrong = runlist.added(QueryDict(form), NOW)
    assert bool(wrong) == (meant is None)
    if meant is not None:
        assert dict(query.lists()) == meant


def test_chips_say_each_filter_and_lift_it(browser) -> None:
    query = QueryDict("status=running&status=failed&config.batch.tasks_per_step__gte=8&ordering=name&cursor=x")
    chips = runlist.chips("/runs", query)
    assert [(chip["text"], chip["value"]) for chip in chips] == [
        ("State is", "running or failed"), ("batch.tasks_per_step ≥", "8"),
    ]  # fmt: skip
    assert chips[0]["url"] == "/runs?config.batch.tasks_per_step__gte=8&ordering=name"


def test_heads_turn_their_order_round() -> None:
    shown = runlist.columns(QueryDict(""))
    heads = {head["head"]: head for head in runlist.heads("/runs", QueryDict("ordering=-reward"), shown)}
    assert (heads["Team reward"]["sort"], heads["Team reward"]["url"]) == ("descending", "/runs?ordering=reward")
    assert (heads["Run"]["sort"], heads["Run"]["url"]) == ("", "/runs?ordering=name")
    assert heads["ETA"]["url"] == ""


def test_the_bulk_filter_of_the_page_matches_what_it_shows(browser, api, editor, make_run) -> None:
    for status in ("failed", "failed", "running"):
        make_run(editor, status)
    context = browser.get("/runs?status=failed").context
    body = {"action": "archive", "filter": json.loads(context["bulk_filter"]), "expected_count": context["total"]}
    assert api.post("/api/v1/runs/bulk", body | {"dry_run": True}).json()["done"] == 2


def test_saved_views_of_others_are_shown_only_when_shared(browser, editor, person) -> None:
    other = person("editor", "otto")
    SavedView.objects.create(owner=other, project_id="default", page="runs", name="Hidden", query="q=1")
    SavedView.objects.create(owner=other, project_id="default", page="runs", name="Shown", query="q=2", shared=True)
    page = text(browser.get("/runs?q=2"))
    assert "Shown" in page
    assert "Hidden" not in page
    assert [view["on"] for view in browser.get("/runs?q=2").context["saved"]] == [True]


def test_a_project_narrows_the_list(browser, editor, make_run, person, client) -> None:
    make_run(editor)
    assert browser.get("/runs?project=elsewhere").status_code == 404
    admin = person("cluster_admin")
    other = person("editor", project="elsewhere")
    client.force_login(admin)
    assert client.get("/runs?project=elsewhere").context["total"] == 0
    assert client.get("/runs?project=default").context["total"] == 1
    assert other.memberships.count() == 1
