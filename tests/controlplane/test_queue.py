"""Rules over pools: who may use them, how much, who comes first, and what those who wait are told."""

import re

import pytest

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.events import DeviceUse, PoolsChanged
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import inbox, leases, nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from flexmarl.store.control.runs import RunLease
from tests.support.controlplane import SPEC, key
from tests.support.markup import markup

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def hardware(db) -> None:
    for name in ("box", "den"):
        facts = [DeviceFacts(f"{name}.cpu{i}", "cpu", i) for i in range(2)]
        nodes.register_node(store_connection(), NodeFacts(name, "127.0.0.1:1", "i1", "0.1"), facts)


def ask(run, no=1, pool="default", **more) -> None:
    """Let a run wait for an engine and a trainer, as its core would."""
    wish = RequestDevices(**{"pool": pool, "engines": 1, "trainers": 1, **more})
    store_connection().execute(
        "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body) "
        "VALUES (%s, %s, 1, 1, 'request_devices', 'driver', %s::jsonb)",
        [run.no, no, wish.model_dump_json()],
    )


def hold(run, *devices) -> None:
    """Let a run hold devices: an engine and, on the second, a trainer."""
    conn = store_connection()
    ask(run, no=99)
    conn.execute("UPDATE store.run_state SET owner = 'd', fence = 1 WHERE run_id = %s", [run.no])
    uses = zip(devices, (DeviceUse.ENGINE, DeviceUse.TRAINER), strict=False)
    assert leases.grant(conn, RunLease(run.no, "d", 1), 99, list(uses))
    inbox.drop_events(conn, run.no)


def waiting(client) -> list:
    return client.get("/api/v1/queue").json()["results"]


def if_match(client, url):
    return {"If-Match": client.get(url)["ETag"]}


def test_the_queue_says_who_waits_in_which_place_and_for_what(api, editor, make_run, person, client_of) -> None:
    first, second = make_run(editor, RunStatus.QUEUED), make_run(editor, RunStatus.QUEUED)
    hold(holder := make_run(editor, RunStatus.RUNNING), "box.cpu0", "box.cpu1")
    ask(first, engines=2)
    ask(second)
    one, two = waiting(api)
    assert (one["run"]["key"], one["position"], one["code"]) == (first.key, 1, "not_free")
    assert one["text"] == f"Needs 3 devices in default, 2 of 4 are free; held by {holder.key} (2)"
    hidden = waiting(client_of(person("editor", project="other")))[0]["text"]
    assert holder.key not in hidden
    assert one["pools"] == [{"pool": "default", "devices": 3, "position": 1}]
    assert (two["code"], two["behind"]) == ("behind", first.key)
    assert two["text"] == f"Behind {first.key}, which waits longer for default"
    assert api.get("/api/v1/queue?pool=gpu").json()["count"] == 0


def test_an_operator_sets_priorities_and_an_editor_does_not(api, editor, make_run, person, client_of) -> None:
    first, second = make_run(editor, RunStatus.QUEUED), make_run(editor, RunStatus.QUEUED)
    ask(first, engines=4)
    ask(second, engines=4)
    url = f"/api/v1/runs/{second.key}/actions/set-priority"
    assert api.post(url, {"priority": 90}).status_code == 403
    operator = client_of(person("operator"))
    assert operator.post(url, {"priority": 101}).status_code == 400
    answer = operator.post(url, {"priority": 90}, headers={"Idempotency-Key": key()})
    assert (answer.status_code, answer.json()["place"]["position"]) == (200, 1)
    store_connection().execute("UPDATE store.device SET state = 'ready'")
    assert [row["run"]["key"] for row in waiting(api)] == [second.key, first.key]
    entry = AuditEntry.objects.get(action="run.set-priority")
    assert (entry.before, entry.after, entry.project) == ({"priority": 50}, {"priority": 90}, "default")


def test_a_quota_holds_a_project_and_is_changed_under_if_match(api, admin_api, editor, make_run) -> None:
    url = "/api/v1/pools/default/quotas/default"
    assert admin_api.get(url).status_code == 404
    assert admin_api.put(url, {"devices": 2}).status_code == 428
    made = admin_api.put(url, {"devices": 2}, headers={"If-Match": 'W/"0"'})
    assert (made.status_code, made.json()["devices"], made["ETag"].startswith('W/"1')) == (200, 2, True)
    assert admin_api.put(url, {"devices": 9}, headers={"If-Match": 'W/"0"'}).status_code == 412
    assert api.put(url, {"devices": 9}, headers=if_match(admin_api, url)).status_code == 403
    run = make_run(editor, RunStatus.QUEUED)
    hold(holder := make_run(editor, RunStatus.RUNNING), "box.cpu0", "box.cpu1")
    ask(run)
    [row] = waiting(api)
    assert (row["code"], row["there"], row["limit"]) == ("quota_reached", 2, 2)
    assert row["text"] == f"Project default holds 2 of its 2 devices in default; held by {holder.key} (2)"
    [quota] = api.get("/api/v1/quotas").json()["results"]
    assert quota["held"] == 2
    assert admin_api.delete(url, headers=if_match(admin_api, url)).status_code == 204
    assert waiting(api) == []
    assert [e.action for e in AuditEntry.objects.filter(target_kind="pool").order_by("id")] == [
        "quota.set",
        "quota.delete",
    ]


def test_a_bound_pool_refuses_plans_and_runs_of_other_projects_and_explains_waiting_ones(
    api, admin_api, editor, make_run, person
) -> None:
    person("editor", "greta", "game")
    run = make_run(editor, RunStatus.QUEUED)
    ask(run)
    body = {"projects": ["game"]}
    answer = admin_api.patch("/api/v1/pools/default", body, headers=if_match(admin_api, "/api/v1/pools/default"))
    assert answer.json()["projects"] == ["game"]
    [row] = waiting(api)
    assert (row["code"], row["never"]) == ("pool_closed", True)
    plan = api.post("/api/v1/runs/plan", {"spec": SPEC}).json()
    assert [e["pointer"] for e in plan["errors"]] == ["/resources/rollout_pool", "/resources/training_pool"]
    assert plan["errors"][0]["code"] == "pool_closed"
    made = api.post("/api/v1/runs", {"spec": SPEC}, headers={"Idempotency-Key": key()})
    assert (made.status_code, made.json()["errors"][0]["code"]) == (400, "pool_closed")
    wrong = admin_api.patch(
        "/api/v1/pools/default", {"projects": ["none"]}, headers=if_match(admin_api, "/api/v1/pools/default")
    )
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (400, "/projects/0")
    admin_api.patch("/api/v1/pools/default", {"projects": []}, headers=if_match(admin_api, "/api/v1/pools/default"))
    assert waiting(api) == []


def test_runs_that_name_no_pool_take_their_projects_or_the_installations(api, admin_api) -> None:
    def pools(**spec):
        made = api.post("/api/v1/runs", {"spec": {**SPEC, **spec}}, headers={"Idempotency-Key": key()}).json()
        return made["spec"]["resources"]["rollout_pool"], made["sources"]["/resources/rollout_pool"]

    assert pools() == ("default", "default")
    admin_api.post("/api/v1/pools", {"name": "gpu", "is_default": True})
    assert pools() == ("gpu", "project")
    admin_api.post("/api/v1/pools", {"name": "cpu"})
    assert api.put("/api/v1/projects/default/default-pool", {"pool": "cpu"}).status_code == 403
    assert admin_api.put("/api/v1/projects/default/default-pool", {"pool": "cpu"}).json() == {"pool": "cpu"}
    assert pools() == ("cpu", "project")
    assert pools(resources={"rollout_pool": "default"}) == ("default", "user")
    admin_api.post("/api/v1/pools", {"name": "new", "is_default": True})
    assert [p["name"] for p in admin_api.get("/api/v1/pools").json()["results"] if p["is_default"]] == ["new"]


def test_a_queued_run_moves_to_another_pool_as_a_fact_and_a_running_one_does_not(
    api, admin_api, editor, make_run
) -> None:
    admin_api.post("/api/v1/pools", {"name": "gpu"})
    run = make_run(editor, RunStatus.QUEUED)
    url = f"/api/v1/runs/{run.key}/actions/move-pool"
    unknown = api.post(url, {"pool": "none"})
    assert (unknown.status_code, unknown.json()["errors"][0]["pointer"]) == (400, "/rollout_pool")
    moved = api.post(url, {"pool": "gpu", "training_pool": "default"}).json()
    assert (moved["spec"]["resources"]["rollout_pool"], moved["sources"]["/resources/rollout_pool"]) == ("gpu", "moved")
    [fact] = [taken.event for taken in inbox.take_events(store_connection(), run.no)]
    assert fact == PoolsChanged(rollout_pool="gpu", training_pool="default", actor="edith")
    hold(run, "box.cpu0")
    late = api.post(url, {"pool": "default"})
    assert (late.status_code, late.json()["code"]) == (409, "invalid_state")
    assert "holds devices" in late.json()["detail"]


def test_a_drain_is_shown_before_it_is_asked_for(api, admin_api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    hold(run, "box.cpu0", "den.cpu0")
    queued = make_run(editor, RunStatus.QUEUED)
    ask(queued)
    look = {"mode": "move", "dry_run": True}
    shown = api.post("/api/v1/nodes/box/actions/drain", look)
    assert shown.status_code == 200, "who reads the cluster may look"
    [lease] = shown.json()["leases"]
    assert (lease["device_id"], lease["use"], lease["run"]) == ("box.cpu0", "engine", run.key)
    assert [agent["role"] for agent in lease["agents"]] == ["speaker", "listener"]
    assert lease["moves_to"] is None, "an older request waits for the same pool"
    assert lease["text"] == "no free device: it stays here until there is one, after the runs that are already waiting"
    store_connection().execute("DELETE FROM store.command WHERE run_id = %s", [queued.no])
    [lease] = api.post("/api/v1/nodes/box/actions/drain", look).json()["leases"]
    assert (lease["moves_to"], lease["text"]) == ("den.cpu1", "to den.cpu1")
    ask(queued, engines=3, trainers=1)
    shown = api.post("/api/v1/nodes/box/actions/drain", look).json()
    assert shown["queue"] == [
        {"run": queued.key, "text": "Needs 4 devices in default, 2 are healthy: add a node, or request fewer"}
    ]
    assert api.get("/api/v1/nodes/box").json()["state"] == "ready", "looking changes nothing"
    assert api.post("/api/v1/nodes/box/actions/drain", {"mode": "move"}).status_code == 403
    tag = if_match(admin_api, "/api/v1/nodes/box")
    progress = admin_api.post("/api/v1/nodes/box/actions/drain", {"mode": "move"}, headers=tag).json()
    assert (progress["state"], progress["drain"]["leases_left"]) == ("draining", 1)


def test_runs_of_other_projects_have_no_name_on_devices_in_the_queue_and_in_drains(
    editor, make_run, person, client_of
) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    hold(run, "box.cpu0", "box.cpu1")
    ask(make_run(editor, RunStatus.QUEUED), engines=4)
    outside = client_of(person("editor", "otto", "elsewhere"))
    answers = [
        outside.get("/api/v1/devices"),
        outside.get("/api/v1/queue"),
        outside.post("/api/v1/nodes/box/actions/drain", {"mode": "move", "dry_run": True}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert "code-words" not in markup(answer)
        assert "a run of another project" in markup(answer)
    assert run.key in markup(client_of(editor).get("/api/v1/devices"))


def test_a_run_that_fits_the_hardware_but_not_now_waits_with_both_figures(api, editor, make_run) -> None:
    conn = store_connection()
    conn.execute("UPDATE store.device SET memory_bytes = 1000000000")
    hold(make_run(editor, RunStatus.RUNNING), "box.cpu0")
    hold(make_run(editor, RunStatus.RUNNING), "den.cpu0")
    ask(run := make_run(editor, RunStatus.QUEUED))
    conn.execute("UPDATE store.lease SET memory_bytes = 900000000")
    assert waiting(api) == [], "there is room"
    conn.execute("UPDATE store.lease SET memory_bytes = 1700000000")
    (one,) = waiting(api)
    assert (one["run"]["key"], one["code"]) == (run.key, "memory_leased")
    assert re.fullmatch(
        r"Needs 0\.\d\d GiB of memory on a further device of default, and at most 0\.28 GiB of a free one are not "
        r"leased.*",
        one["text"],
    )
