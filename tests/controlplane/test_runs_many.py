"""Many runs: filters, search, bulk verbs, external ids, copies, archive, saved views, plans that must still hold."""

import json
from datetime import timedelta
from itertools import pairwise
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments import plan_tokens
from flexmarl.controlplane.runs.models import Operation, Run, SavedView
from flexmarl.store.control import inbox
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts, register_node
from tests.support.controlplane import SPEC, key, set_state

pytestmark = pytest.mark.django_db


def names(answer) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [run["name"] for run in answer.json()["results"]]


def listed(api, **query) -> list[str]:
    return names(api.get(f"/api/v1/runs?{urlencode(query, doseq=True)}"))


def post(api, path, **body):
    return api.post(f"/api/v1/{path}", body, headers={"Idempotency-Key": key()})


def metric(run, name: str, values: list[float], agent: str = "", stat: str = "mean") -> None:
    for step, value in enumerate(values, 1):
        store_connection().execute(
            "INSERT INTO store.metric (run_id, name, agent, stat, step, value, at) VALUES (%s,%s,%s,%s,%s,%s,now())",
            [run.no, name, agent, stat, step, value],
        )
    set_state(run, step=len(values))


# Filters and orderings -----------------------------------------------------------------------------------------------


def test_tags_must_all_be_there(api) -> None:
    for name, tags in (("one", ["base"]), ("two", ["base", "paper"]), ("three", [])):
        assert post(api, "runs", spec=SPEC, name=name, tags=tags).json()["tags"] == tags
    assert listed(api, tag="base") == ["two", "one"]
    assert listed(api, tag=["base", "paper"]) == ["two"]
    assert listed(api, q="paper") == ["two"]


def test_values_of_the_specification_narrow_the_list(api, editor, make_run) -> None:
    for tasks in (8, 16, 32):
        make_run(editor, name=f"t{tasks}", batch={"tasks_per_step": tasks, "micro_batch_groups": 4})
    assert listed(api, **{"config.batch.tasks_per_step": 16}) == ["t16"]
    assert listed(api, **{"config.batch.tasks_per_step__n": 16}) == ["t32", "t8"]
    assert listed(api, **{"config.batch.tasks_per_step__gte": 16}) == ["t32", "t16"]
    assert listed(api, **{"config.batch.tasks_per_step__lte": 16, "config.environment.type": "reference_game"}) == [
        "t16",
        "t8",
    ]
    assert listed(api, **{"config.environment.type": "arithmetic"}) == []


def test_newest_values_of_series_narrow_the_list(api, editor, make_run) -> None:
    rising, falling = make_run(editor, name="rising"), make_run(editor, name="falling")
    metric(rising, "reward/team", [0.1, 0.9])
    metric(falling, "reward/team", [0.9, 0.1])
    metric(falling, "reward/agent", [0.1, 0.4], agent="speaker")
    assert listed(api, **{"metric.reward/team:last__gte": 0.5}) == ["rising"]
    assert listed(api, **{"metric.reward/team:last__lte": 0.5}) == ["falling"]
    assert listed(api, **{"metric.reward/agent@speaker:last__gte": 0.4}) == ["falling"]
    assert listed(api, **{"metric.reward/team.max:last__gte": 0}) == []


@pytest.mark.parametrize(
    "name",
    [
        "config", "config.", "config.a..b", "config.batch.tasks_per_step__like", "config.a'b", "config.a)b",
        "config." + "a." * 9 + "b", "metric.reward/team", "metric.reward/team:last", "metric.reward/team:first__gte",
        "metric.re'ward:last__gte", "metric.a/b/c/d/e:last__gte",
    ],
)  # fmt: skip
def test_names_outside_the_grammar_are_unknown(api, name) -> None:
    answer = api.get("/api/v1/runs", {name: "1"})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "unknown_parameter")


@pytest.mark.parametrize("text", ["NaN", "1e999", "[" * 5000, "'; DROP TABLE runs_run; --", "9" * 400, "{}", "null"])
def test_hostile_values_are_values(api, editor, make_run, text) -> None:
    make_run(editor)
    assert api.get("/api/v1/runs", {"config.batch.tasks_per_step": text}).status_code == 200
    assert api.get("/api/v1/runs", {"config.batch.tasks_per_step__gte": text}).status_code in (200, 400)
    assert Run.objects.count() == 1


def test_times_bound_the_list_on_both_sides(api, editor, make_run) -> None:
    run = make_run(editor, name="old")
    make_run(editor, name="new")
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(created_at=now - timedelta(days=30))
    set_state(run, started_at=now - timedelta(days=29), finished_at=now - timedelta(days=28))
    week = (now - timedelta(days=7)).isoformat()
    assert listed(api, created_at__gte=week) == ["new"]
    assert listed(api, created_at__lte=week) == ["old"]
    assert listed(api, finished_at__lte=week) == listed(api, started_at__lte=week) == ["old"]
    assert listed(api, started_at__gte=week) == []


ORDERED = ["name", "status", "step", "reward", "updated_at", "created_at"]


@pytest.mark.parametrize("ordering", [*ORDERED, *(f"-{name}" for name in ORDERED)])
def test_pages_of_every_ordering_meet_each_run_once(api, editor, make_run, ordering) -> None:
    for index, (status, reward) in enumerate(zip(["draft", "running", "failed"] * 2, [0.5, None] * 3, strict=True)):
        run = make_run(editor, status, name=f"run {index}")
        set_state(run, step=index % 3, progress=json.dumps({"reward": reward} if index else {}))
    column = {"created_at": "id"}.get(ordering.strip("-"), ordering.strip("-"))
    found, link = [], f"/api/v1/runs?limit=2&ordering={ordering}"
    while link:
        page = api.get(link).json()
        found += page["results"]
        link = page["next"]
    assert len({run["id"] for run in found}) == len(found) == 6
    keys = [run["headline"]["last"] if column == "reward" else run[column] for run in found]
    for one, other in pairwise([(-1.0 if value is None else value) for value in keys]):
        assert one >= other if ordering.startswith("-") else one <= other


def test_a_search_body_reads_as_the_address_does(api, editor, make_run) -> None:
    for tasks in (8, 16, 32):
        make_run(editor, "running", name=f"t{tasks}", batch={"tasks_per_step": tasks, "micro_batch_groups": 4})
    filters = {"status": ["running", "failed"], "config.batch.tasks_per_step__lte": 16}
    answer = post(api, "runs/search", filters=filters, ordering="name", limit=1, count="exact", fields=["name"])
    assert (answer.json()["results"], answer.json()["count"]) == ([{"name": "t16"}], 2)
    again = post(api, "runs/search", filters=filters, ordering="name", limit=1, cursor=answer.json()["next"])
    assert names(again) == ["t8"]
    wrong = post(api, "runs/search", filters={"statuses": "running"})
    assert wrong.json()["errors"][0]["pointer"] == "/filters/statuses"
    assert wrong.json()["errors"][0]["location"] == "body"
    unknown = post(api, "runs/search", fields=["password"])
    assert unknown.json()["errors"][0]["pointer"] == "/fields/0"
    nested = post(api, "runs/search", filters={"status": {"not": 1}})
    assert nested.json()["errors"][0]["pointer"] == "/filters/status"


def test_lists_ask_as_often_for_many_runs_as_for_few(api, editor, make_run, django_assert_max_num_queries) -> None:
    for index in range(12):
        metric(make_run(editor, name=f"run {index}"), "reward/team", [0.1, 0.2])
    for query in ("", "?q=run&tag=x", "?metric.reward/team:last__gte=0.1", "?ordering=-reward&count=exact"):
        api.get(f"/api/v1/runs{query}")
        with django_assert_max_num_queries(6):
            api.get(f"/api/v1/runs{query}")


def test_runs_of_many_projects_cost_no_more_queries(person, client_of, make_run, django_assert_max_num_queries) -> None:
    admin = client_of(person("cluster_admin"))
    for index in range(6):
        project = f"team-{index}"
        person("editor", project=project)
        made = post(admin, "runs", spec=SPEC, project=project)
        assert made.status_code == 201
    admin.get("/api/v1/runs")
    with django_assert_max_num_queries(5):
        assert len(admin.get("/api/v1/runs").json()["results"]) == 6


# Bulk ----------------------------------------------------------------------------------------------------------------


def test_a_bulk_verb_answers_for_each_run(api, editor, person, make_run) -> None:
    running, draft, other = make_run(editor, "running"), make_run(editor), make_run(person("editor"), "running")
    ids = [running.key, str(draft.id), str(other.id), "no-such-run", running.key]
    answer = post(api, "runs/bulk", action="stop", ids=ids, reason="tidy up").json()
    assert [(item["outcome"], (item["error"] or {}).get("code")) for item in answer["results"]] == [
        ("done", None), ("refused", "invalid_state"), ("refused", "permission_denied"), ("refused", "not_found"),
    ]  # fmt: skip
    assert (answer["count"], answer["done"], answer["refused"]) == (4, 1, 3)
    operation = api.get(answer["results"][0]["operation"]).json()
    assert (operation["action"], operation["target"]["key"]) == ("stop", running.key)
    assert inbox.waiting(store_connection(), running.no) == 1
    assert Operation.objects.count() == 1


def test_a_dry_run_says_the_same_and_changes_nothing(api, editor, make_run) -> None:
    running, draft = make_run(editor, "running"), make_run(editor)
    before = AuditEntry.objects.count()
    body = {"action": "pause", "ids": [str(running.id), str(draft.id)]}
    dry = post(api, "runs/bulk", **body, dry_run=True).json()
    assert [item["outcome"] for item in dry["results"]] == ["would", "refused"]
    assert (Operation.objects.count(), inbox.waiting(store_connection(), running.no)) == (0, 0)
    assert AuditEntry.objects.count() == before
    real = post(api, "runs/bulk", **body).json()
    assert (real["done"], real["refused"]) == (dry["done"], dry["refused"])


def test_a_bulk_filter_acts_on_what_the_caller_saw(api, editor, make_run) -> None:
    for name in ("a", "b"):
        make_run(editor, "failed", name=name)
    filters = {"status": "failed"}
    missing = post(api, "runs/bulk", action="archive", filter=filters)
    assert missing.json()["errors"][0]["pointer"] == "/expected_count"
    wrong = post(api, "runs/bulk", action="archive", filter=filters, expected_count=3)
    assert (wrong.status_code, wrong.json()["matching_count"]) == (409, 2)
    assert post(api, "runs/bulk", action="archive", filter=filters, expected_count=2).json()["done"] == 2
    assert listed(api) == []
    assert sorted(listed(api, archived="true")) == ["a", "b"]


def test_tags_are_put_and_taken_in_bulk(api, editor, make_run) -> None:
    runs = [make_run(editor, name=name) for name in ("a", "b")]
    ids = [str(run.id) for run in runs]
    assert post(api, "runs/bulk", action="tag", ids=ids, tags=["x", "y"]).json()["done"] == 2
    assert listed(api, tag=["x", "y"]) == ["b", "a"]
    assert post(api, "runs/bulk", action="untag", ids=ids[:1], tags=["x"]).json()["done"] == 1
    assert listed(api, tag="x") == ["b"]
    assert post(api, "runs/bulk", action="tag", ids=ids).json()["errors"][0]["pointer"] == "/tags"


def test_a_repeated_bulk_request_acts_once(api, editor, make_run) -> None:
    run, idempotency = make_run(editor, "running"), {"Idempotency-Key": key()}
    body = {"action": "stop", "ids": [str(run.id)]}
    first = api.post("/api/v1/runs/bulk", body, headers=idempotency)
    again = api.post("/api/v1/runs/bulk", body, headers=idempotency)
    assert again.json() == first.json()
    assert again["Idempotency-Replayed"] == "true"
    assert Operation.objects.count() == 1


@pytest.mark.parametrize("body", [{}, {"ids": [], "filter": {}}, {"ids": ["x"] * 501}, {"action": "burn", "ids": []}])
def test_wrong_bulk_bodies_are_refused(api, body) -> None:
    assert post(api, "runs/bulk", **{"action": "stop", **body}).status_code == 400


# External ids, copies, archive ---------------------------------------------------------------------------------------


def test_a_scheduler_creates_its_run_once(api) -> None:
    path = "/api/v1/runs/by-external-id/job-77"
    made = api.put(path, {"spec": SPEC, "tags": ["nightly"]})
    again = api.put(path, {"tags": ["nightly"], "spec": SPEC})
    assert (made.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == made.json()["id"]
    assert (made.json()["external_id"], again.json()["tags"]) == ("job-77", ["nightly"])
    for other in ({"spec": SPEC}, {"spec": {**SPEC, "seed": 7}, "tags": ["nightly"]}):
        refused = api.put(path, other)
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert refused.json()["existing"] == made.json()["id"]
    assert api.put("/api/v1/runs/by-external-id/job-78", {"spec": SPEC}).status_code == 201
    assert Run.objects.count() == 2
    assert listed(api, external_id="job-77") == [SPEC["name"]]


def test_external_ids_are_per_project(person, client_of) -> None:
    admin = client_of(person("cluster_admin"))
    person("editor", project="other")
    for project in ("default", "other"):
        answer = admin.put("/api/v1/runs/by-external-id/job", {"spec": SPEC, "project": project})
        assert (answer.status_code, answer.json()["project"]) == (201, project)
    wrong = admin.put("/api/v1/runs/by-external-id/job", {"spec": SPEC, "project": "nowhere"})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (400, "/project")


def test_a_clone_is_a_new_draft_that_names_its_parent(api) -> None:
    first = post(api, "runs", spec=SPEC, name="first", overrides={"seed": 3}).json()
    copy = post(api, f"runs/{first['key']}/actions/clone", overrides={"batch": {"tasks_per_step": 24}})
    assert copy.status_code == 201
    run = copy.json()
    assert (run["status"], run["parent"], run["name"]) == (
        "draft", {"id": first["id"], "key": first["key"]}, "first",
    )  # fmt: skip
    assert run["spec"] == {**first["spec"], "batch": {**first["spec"]["batch"], "tasks_per_step": 24}}
    sources = run["sources"]
    assert sources["/batch/tasks_per_step"] == sources["/seed"] == "user"
    assert sources["/batch/episodes_per_task"] == "default"
    assert listed(api, parent=first["key"]) == ["first"]


def test_ended_runs_and_drafts_are_archived_and_come_back(api, editor, make_run) -> None:
    run, draft = make_run(editor, "running", name="busy"), make_run(editor, name="idle")
    refused = post(api, f"runs/{run.key}/actions/archive")
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")
    assert post(api, f"runs/{draft.key}/actions/archive").json()["archived_at"]
    assert listed(api) == ["busy"]
    assert listed(api, archived="any") == ["idle", "busy"]
    assert api.get(f"/api/v1/runs/{draft.key}").status_code == 200
    assert post(api, f"runs/{draft.key}/actions/restore").json()["archived_at"] is None
    assert listed(api) == ["idle", "busy"]
    assert set(AuditEntry.objects.values_list("action", flat=True)) >= {"run.archive", "run.restore"}


def test_others_do_not_archive_or_tag(person, client_of, make_run) -> None:
    run = make_run(person("editor", "owner"), "failed")
    other = client_of(person("editor"))
    assert post(other, f"runs/{run.key}/actions/archive").status_code == 403
    assert other.patch(f"/api/v1/runs/{run.key}", {"tags": ["mine"]}).status_code == 403
    assert client_of(person("operator")).patch(f"/api/v1/runs/{run.key}", {"tags": ["ours"]}).status_code == 200


def test_tags_are_checked_and_kept_once(api, editor, make_run) -> None:
    run = make_run(editor)
    path = f"/api/v1/runs/{run.key}"
    assert api.patch(path, {"tags": ["b", "a", " b "]}).json()["tags"] == ["a", "b"]
    assert api.patch(path, {"tags": ["<script>"]}).json()["errors"][0]["pointer"] == "/tags"
    assert api.patch(path, {"tags": [f"t{i}" for i in range(21)]}).status_code == 400
    stale = api.patch(path, {"tags": []}, headers={"If-Match": 'W/"1"'})
    assert stale.status_code == 412


# Plans ---------------------------------------------------------------------------------------------------------------


def devices(count: int) -> None:
    found = [DeviceFacts(f"box.cpu{i}", "cpu", i, "CPU share", 2**33) for i in range(count)]
    register_node(store_connection(), NodeFacts("box", "127.0.0.1:1", "n", "1", {}), found)


def test_a_run_is_made_as_planned(api) -> None:
    devices(4)
    plan = api.post("/api/v1/runs/plan", {"spec": SPEC}).json()
    assert plan["devices"]["fits_now"]
    answer = post(api, "runs", spec=SPEC, name="other name", plan_token=plan["plan_token"])
    assert answer.status_code == 201, answer.content


def test_a_plan_is_stale_when_its_devices_are_gone(api) -> None:
    devices(4)
    token = api.post("/api/v1/runs/plan", {"spec": SPEC}).json()["plan_token"]
    store_connection().execute("UPDATE store.device SET state = 'cordoned' WHERE id <> 'box.cpu0'")
    answer = post(api, "runs", spec=SPEC, plan_token=token)
    assert (answer.status_code, answer.json()["code"]) == (409, "plan_stale")
    assert "devices.fits_now" in [change["what"] for change in answer.json()["changes"]]
    assert Run.objects.count() == 0
    without = post(api, "runs", spec=SPEC)
    assert without.status_code == 201


def test_a_plan_that_waited_anyway_is_not_stale_for_waiting(api) -> None:
    token = api.post("/api/v1/runs/plan", {"spec": SPEC}).json()["plan_token"]
    assert post(api, "runs", spec=SPEC, plan_token=token).status_code == 201


def test_a_plan_of_another_specification_or_time_or_hand_is_refused(api, monkeypatch) -> None:
    token = api.post("/api/v1/runs/plan", {"spec": SPEC}).json()["plan_token"]
    other = post(api, "runs", spec={**SPEC, "seed": 9}, plan_token=token)
    assert [change["what"] for change in other.json()["changes"]] == ["/seed"]
    forged = post(api, "runs", spec=SPEC, plan_token=token[:-2] + "xx")
    assert forged.json()["errors"][0]["pointer"] == "/plan_token"
    monkeypatch.setattr(plan_tokens, "VALID_S", -1)
    assert post(api, "runs", spec=SPEC, plan_token=token).json()["changes"][0]["what"] == "age"


# Saved views ---------------------------------------------------------------------------------------------------------


def test_saved_views_are_ones_own_until_shared(api, person, client_of) -> None:
    made = post(api, "saved-views", name="My failures", page="runs", query="status=failed&owner=edith")
    assert (made.status_code, made.json()["web_url"]) == (201, "/runs?status=failed&owner=edith")
    other = client_of(person("viewer"))
    assert other.get(made.json()["url"]).status_code == 404
    assert api.patch(made.json()["url"], {"shared": True}).json()["shared"]
    assert [view["name"] for view in other.get("/api/v1/saved-views?page=runs").json()["results"]] == ["My failures"]
    assert other.patch(made.json()["url"], {"name": "Mine"}).status_code == 403
    assert other.delete(made.json()["url"]).status_code == 403
    assert api.delete(made.json()["url"]).status_code == 204
    assert SavedView.objects.count() == 0


def test_viewers_save_but_do_not_share(person, client_of) -> None:
    viewer = client_of(person("viewer"))
    assert post(viewer, "saved-views", name="a", page="runs").status_code == 201
    assert post(viewer, "saved-views", name="b", page="runs", shared=True).status_code == 403


def test_a_name_is_used_once_per_person_and_page(api) -> None:
    assert post(api, "saved-views", name="a", page="runs").status_code == 201
    again = post(api, "saved-views", name="a", page="runs")
    assert (again.status_code, again.json()["code"]) == (409, "duplicate_name")
    assert post(api, "saved-views", name="a", page="events").status_code == 201


def test_a_changed_view_has_a_new_tag(api) -> None:
    view = post(api, "saved-views", name="a", page="runs").json()
    tag = api.get(view["url"])["ETag"]
    assert api.patch(view["url"], {"name": "b"}, headers={"If-Match": tag}).json()["version"] == 2
    assert api.patch(view["url"], {"name": "c"}, headers={"If-Match": tag}).status_code == 412
