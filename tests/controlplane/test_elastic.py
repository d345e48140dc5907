"""Fleets that grow and shrink, as people and other runs meet them: plans, refusals, the queue, quotas, drains."""

import re

import pytest

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.live import FleetProgress, Progress
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import pool_look
from flexmarl.controlplane.runs.providing.scaling import HostShape, hosts_wanted
from flexmarl.orchestrator.pool import surplus
from flexmarl.orchestrator.pool.arbiter import arbitrate
from flexmarl.store.control import inbox, leases, nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from flexmarl.store.control.runs import RunLease
from tests.support.controlplane import SPEC, key
from tests.support.markup import markup

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def hardware(db) -> None:
    facts = [DeviceFacts(f"box.cpu{i}", "cpu", i) for i in range(5)]
    nodes.register_node(store_connection(), NodeFacts("box", "127.0.0.1:1", "i1", "0.1"), facts)
    store_connection().execute("UPDATE store.node SET heartbeat_at = clock_timestamp() + interval '1 hour'")


def elastic(least=1, most=3):
    return {**SPEC, "resources": {"rollout_devices": {"min": least, "max": most}}}


def ask(run, no=1, **more) -> None:
    wish = RequestDevices(**{"pool": "default", "engines": 1, "trainers": 1, **more})
    store_connection().execute(
        "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body) "
        "VALUES (%s, %s, 1, 1, 'request_devices', 'driver', %s::jsonb)",
        [run.no, no, wish.model_dump_json()],
    )


def grant(run, no, *placements):
    conn = store_connection()
    conn.execute("UPDATE store.run_state SET owner = 'd', fence = 1 WHERE run_id = %s", [run.no])
    found = leases.grant(conn, RunLease(run.no, "d", 1), no, list(placements))
    inbox.drop_events(conn, run.no)
    return found


@pytest.fixture
def grown(api, make_run, editor):
    """A run of one to three engines that has all of them."""
    run = make_run(editor, RunStatus.RUNNING, resources={"rollout_devices": {"min": 1, "max": 3}})
    ask(run, no=90)
    grant(run, 90, ("box.cpu0", DeviceUse.ENGINE), ("box.cpu1", DeviceUse.TRAINER))
    for no in (2, 3):
        ask(run, no=90 + no, trainers=0, extra=True)
        assert grant(run, 90 + no, (f"box.cpu{no}", DeviceUse.ENGINE))
    return run


def test_a_plan_says_minimum_maximum_and_what_is_free(api) -> None:
    plan = api.post("/api/v1/runs/plan", {"spec": elastic(1, 8)}).json()
    engine, trainer = plan["devices"]["needed"]
    assert (engine["devices"], engine["max_devices"], engine["free"]) == (1, 8, 5)
    assert (trainer["devices"], trainer["max_devices"]) == (1, 1)
    assert plan["devices"]["fits_now"], "it starts with its minimum"
    assert "Up to 7 more join while nobody waits for them, 3 of them now." in plan["devices"]["text"]
    fixed = api.post("/api/v1/runs/plan", {"spec": SPEC}).json()["devices"]
    assert fixed["needed"][0]["max_devices"] == fixed["needed"][0]["devices"]
    assert "join" not in fixed["text"]


@pytest.mark.parametrize(
    ("asked", "pointer", "words"),
    [
        ({"min": 0, "max": 2}, "/min", "min must be at least 1; it is 0."),
        ({"min": 3, "max": 2}, "/max", "max is 2, less than min: at least 3 is legal."),
        ({"min": 1, "max": 65}, "/max", "max must be at most 64; it is 65."),
        ({"min": 1}, "/max", "max is required."),
        ({"min": 1, "max": 2, "price": 3}, "/price", "price is not a known field."),
        (0, "", "rollout_devices must be at least 1; it is 0."),
    ],
)
def test_what_is_no_fleet_is_refused_by_field_and_rule(api, asked, pointer, words) -> None:
    spec = {**SPEC, "resources": {"rollout_devices": asked}}
    answer = api.post("/api/v1/runs", {"spec": spec}, headers={"Idempotency-Key": key()})
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert (error["pointer"], error["detail"]) == (f"/resources/rollout_devices{pointer}", words)


def test_a_fleet_is_kept_as_it_was_written(api) -> None:
    made = api.post("/api/v1/runs", {"spec": elastic(2, 4)}, headers={"Idempotency-Key": key()}).json()
    assert made["spec"]["resources"]["rollout_devices"] == {"min": 2, "max": 4}
    assert made["devices"] == 3, "what it starts with"


def test_what_would_grow_is_not_in_the_queue(api, grown) -> None:
    store_connection().execute("UPDATE store.device SET state = 'cordoned' WHERE id = 'box.cpu4'")
    ask(grown, no=99, trainers=0, extra=True)
    assert api.get("/api/v1/queue").json()["count"] == 0


def test_engines_above_the_minimum_leave_for_a_run_that_waits(grown, make_run, editor) -> None:
    ask(waiting := make_run(editor, RunStatus.QUEUED))
    seen = pool_look.look(store_connection())
    assert len(seen.surplus) == 2
    [leave] = surplus.leaves(
        seen.demands, arbitrate(seen.demands, seen.free, seen.rules), seen.free, seen.rules, seen.surplus
    )
    assert (leave.run_id, leave.for_run) == (grown.no, waiting.no)
    assert leave.lease_id == max(one.lease_id for one in seen.surplus), "the youngest"
    assert hosts_wanted(seen, HostShape("default", "cpu", 4, True), 3) == 0, "no host is asked for meanwhile"


def test_an_engine_that_joins_counts_against_the_quota(grown) -> None:
    conn = store_connection()
    conn.execute("INSERT INTO store.pool_quota (project, pool, devices) VALUES (%s, 'default', 4)", [grown.project_id])
    seats = "SELECT sum(devices) FROM store.seat WHERE pool = 'default'"
    ask(grown, no=99, trainers=0, extra=True)
    assert conn.execute(seats).fetchone() == (4,), "what would join is no seat yet"
    assert grant(grown, 99, ("box.cpu4", DeviceUse.ENGINE)) is None
    assert conn.execute(seats).fetchone() == (4,)


def test_a_drain_says_which_engines_are_given_back(api, admin_api, grown) -> None:
    shown = admin_api.post("/api/v1/nodes/box/actions/drain", {"mode": "move", "dry_run": True}).json()
    texts = [one["text"] for one in shown["leases"]]
    assert texts.count("is given back: its run goes on with its other engines") == 2
    assert sum(text.startswith("no free device") for text in texts) == 2


def test_the_header_of_a_run_says_how_many_engines_of_how_many(browser, grown, make_run, editor) -> None:
    progress = Progress(fleet=FleetProgress(engines=2, joining=1, leaving=0, min=1, max=3))
    store_connection().execute(
        "UPDATE store.run_state SET progress = %s::jsonb WHERE run_id = %s", [progress.model_dump_json(), grown.no]
    )
    store_connection().execute(
        "UPDATE store.lease SET granted_at = now() - CASE device_id WHEN 'box.cpu0' THEN 2 ELSE 1 END * interval '1 h' "
        "WHERE run_id = %s",
        [grown.no],
    )
    page = markup(browser.get(f"/runs/{grown.key}"))
    assert '<span class="muted">engines</span> 2 of 1–3<span class="over-time"' in page.replace("<span  ", "<span ")
    assert "1 joining, 0 leaving" in page
    assert 'aria-label="Engines since the first lease: 1 at first, 1 at least, 3 at most, 3 at the end"' in page
    fixed = make_run(editor, RunStatus.RUNNING)
    assert "run-fleet" not in markup(browser.get(f"/runs/{fixed.key}"))


def test_the_header_of_a_run_says_how_many_engines_it_wants_and_why(browser, grown) -> None:
    why = "trainers wait for more than 10% of the time: in 5 steps of 90 s they waited for 31.0%"
    progress = Progress(fleet=FleetProgress(engines=2, joining=1, leaving=0, min=1, max=4, wanted=3, why=why))
    store_connection().execute(
        "UPDATE store.run_state SET progress = %s::jsonb WHERE run_id = %s", [progress.model_dump_json(), grown.no]
    )
    page = " ".join(markup(browser.get(f"/runs/{grown.key}")).split())
    assert "2 of 1–4, 3 wanted</span>" in page
    assert f"3 wanted: {why}" in page


def test_rates_to_follow_need_a_range(api) -> None:
    spec = {**SPEC, "mechanisms": {"scaling": "dead_band"}}
    answer = api.post("/api/v1/runs", {"spec": spec}, headers={"Idempotency-Key": key()})
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/mechanisms/scaling/type", "needs_range")
    made = api.post(
        "/api/v1/runs",
        {"spec": {**elastic(1, 3), "mechanisms": {"scaling": "dead_band"}}},
        headers={"Idempotency-Key": key()},
    )
    assert made.status_code == 201
    assert made.json()["spec"]["mechanisms"]["scaling"]["type"] == "dead_band"


def test_the_form_has_the_settings_of_rates_to_follow(browser) -> None:
    page = markup(browser.get("/runs/new?template=reference_game"))
    for name in ("type", "grow_above", "shrink_below", "steps", "hold_s"):
        assert f'data-pointer="/mechanisms/scaling/{name}"' in page


def test_the_form_has_one_field_for_a_number_and_for_two_bounds(browser) -> None:
    page = markup(browser.get("/runs/new?template=reference_game"))
    [found] = re.findall(r'<input[^>]*data-pointer="/resources/rollout_devices"[^>]*>', page)
    assert 'data-kind="devices"' in found
    assert "free devices of its pool join up to `max`" in page
