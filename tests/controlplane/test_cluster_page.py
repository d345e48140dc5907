"""Pools and nodes, and the queue, as pages: few queries however many devices, and what each person may press."""

import re
import time

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import nodes, process_heartbeats
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from flexmarl.store.control.process_heartbeats import ProcessFacts
from tests.controlplane.test_queue import ask, hold
from tests.support.markup import markup
from tests.support.statements import at_most
from webui.views import cluster_lists

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(client, person):
    client.force_login(person("cluster_admin", "ada"))
    return client


def machines(count: int, devices: int = 8) -> None:
    for number in range(count):
        name = f"n{number}"
        facts = [DeviceFacts(f"{name}.cpu{i}", "cpu", i, memory_bytes=4_000_000_000) for i in range(devices)]
        nodes.register_node(store_connection(), NodeFacts(name, "127.0.0.1:1", "i1", "0.1"), facts)


def test_a_pool_that_is_not_there_is_no_form_for_a_new_one(browser) -> None:
    machines(1)
    assert "There is no pool nosuch." in markup(browser.get("/cluster?edit=nosuch"))
    assert "New pool" in markup(browser.get("/cluster?edit=new"))


@pytest.mark.parametrize(
    ("count", "query", "words"),
    [
        (0, "view=devices", "No device has registered"),
        (0, "", "No node has registered"),
        (1, "view=devices&pool=spare", "No device is in spare"),
        (1, "pool=spare", "No node has a device in spare"),
    ],
)
def test_an_empty_cluster_says_whether_all_of_it_or_a_pool_is_empty(browser, count, query, words) -> None:
    machines(count)
    text = markup(browser.get(f"/cluster?{query}"))
    assert words in text
    assert "add=node" in text


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/cluster", 25),
        ("/cluster?view=devices", 22),
        ("/cluster?drain=n0&mode=move", 34),
        ("/queue", 13),  # three are what its filters offer, which is asked again after some seconds
        ("/cluster/timeline", 14),
    ],
)
def test_pages_ask_few_questions_however_many_devices(browser, editor, make_run, path, most) -> None:
    machines(40)
    for number in range(8):
        hold(make_run(editor, RunStatus.RUNNING), f"n{number}.cpu0", f"n{number}.cpu1")
        ask(make_run(editor, RunStatus.QUEUED))
    browser.get(path)
    with at_most(most):
        assert browser.get(path).status_code == 200


def test_loads_are_read_every_second_since_nobody_hints_at_them(browser) -> None:
    assert 'id="cluster" data-live="/cluster" data-every="1" data-poll="1"' in markup(browser.get("/cluster"))


def test_a_device_card_shows_measured_memory_and_leaves_out_what_nobody_measured(browser, editor, make_run) -> None:
    machines(1, devices=2)
    hold(make_run(editor, RunStatus.RUNNING), "n0.cpu0", "n0.cpu1")
    nodes.put_load(
        store_connection(),
        "n0",
        "i1",
        {"cpu_share": 0.5, "memory_used": 10},
        {"n0.cpu0": {"memory_bytes": 10**9}},
    )
    [node] = browser.get("/cluster").context["nodes"]
    assert [device["memory_share"] for device in node["rows"]] == [0.25, None]
    page = markup(browser.get("/cluster"))
    assert page.count(">mem<") == 1
    assert "CPU 50 %" in page.replace("\u2009", " ").replace("\u00a0", " ")
    nodes.put_load(store_connection(), "n0", "other-life", {"memory_used": 99}, {"n0.cpu0": {"memory_bytes": 99}})
    [node] = browser.get("/cluster").context["nodes"]
    assert node["load"]["memory_used"] == 10, "an older process of the node says nothing any more"


def test_busy_hours_fill_the_week_of_a_pool(browser, editor, make_run) -> None:
    machines(1, devices=2)
    run = make_run(editor, RunStatus.RUNNING)
    hold(run, "n0.cpu0", "n0.cpu1")
    assert browser.get("/cluster").context["pools"][0]["heat"] == [], "no data, no chart"
    from django.core.cache import cache

    cache.clear()
    store_connection().execute("UPDATE store.lease SET granted_at = now() - interval '250 seconds'")
    store_connection().execute(
        "INSERT INTO store.interval (lease_id, incarnation, ord, run_id, device_id, phase, t0, t1) "
        "SELECT l.id, 'e', 1, l.run_id, l.device_id, 'rollout', now - 200, now FROM store.lease l, "
        "(SELECT extract(epoch FROM clock_timestamp())::float8 AS now) t WHERE l.device_id = 'n0.cpu0'"
    )
    [pool] = [pool for pool in browser.get("/cluster").context["pools"] if pool["name"] == "default"]
    cells = [cell["share"] for day in pool["heat"] for cell in day["cells"] if cell["share"]]
    assert 1 <= len(cells) <= 2
    assert all(0 < share <= 0.5 for share in cells), "one of two devices was busy"
    devices = {d["id"]: d["use"] for d in browser.get("/cluster?view=devices").context["devices"]}
    assert 0.75 < devices["n0.cpu0"] < 0.85, "200 of the 250 seconds that it has been held"
    assert devices["n0.cpu1"] == 0.0


def test_members_see_no_verb_and_no_name_of_other_projects(client, person, editor, make_run) -> None:
    machines(1)
    run = make_run(editor, RunStatus.RUNNING)
    hold(run, "n0.cpu0", "n0.cpu1")
    ask(make_run(editor, RunStatus.QUEUED))
    client.force_login(person("operator", "otto", "elsewhere"))
    for path in ("/cluster", "/cluster?view=devices", "/cluster?drain=n0", "/queue"):
        page = markup(client.get(path))
        assert "data-rule" not in page
        assert run.key not in page
        assert "data-priority" not in page
    assert "not drain it" in markup(client.get("/cluster?drain=n0"))


def test_an_unknown_node_in_the_address_is_a_page_that_says_so(browser) -> None:
    assert browser.get("/cluster?drain=none").status_code == 404


def test_a_process_that_stopped_reporting_is_named_with_what_to_do(browser) -> None:
    conn = store_connection()
    for kind in ("driver", "rollout"):
        process_heartbeats.put(conn, ProcessFacts(kind, "box", "", 4711, time.time()), "", 0.0)
    assert "no heartbeat" not in markup(browser.get("/cluster"))
    conn.execute("UPDATE store.process_heartbeat SET heard_at = heard_at - interval '45 s' WHERE kind = 'driver'")
    text = markup(browser.get("/cluster"))
    assert re.search(r"Driver on box: no heartbeat for (4[5-9]|5\d) s\.", text), text[:20_000]
    assert "no run makes progress and no action is carried out" in text
    assert "kill process 4711 and run <code>manage.py drive</code>" in text
    assert [process["state"] for process in browser.get("/cluster").context["processes"]] == ["silent", "running"]


def test_a_large_cluster_is_shown_a_page_at_a_time_and_found_by_name(browser) -> None:
    machines(60, devices=2)
    store_connection().execute("UPDATE store.device SET pool = node")
    store_connection().execute("UPDATE store.node SET heartbeat_at = now() - interval '1 hour' WHERE name = 'n59'")
    first = browser.get("/cluster").context
    assert [node["name"] for node in first["nodes"]][:2] == ["n59", "n0"], "sick ones first"
    assert (len(first["nodes"]), first["node_page"].count, first["total"]) == (cluster_lists.NODES, 60, 120)
    assert (len(first["pools"]), first["pool_page"].count) == (cluster_lists.POOLS, 61)
    page = markup(browser.get("/cluster"))
    assert "1 to 25 of 60 nodes" in page
    assert "1 to 12 of 61 pools" in page
    named: list[str] = []
    for number in range(1, 5):
        shown = browser.get(f"/cluster?page={number}").context
        named += [] if number > 3 else [node["name"] for node in shown["nodes"]]
    assert sorted(named) == sorted(f"n{number}" for number in range(60)), "each of them on one page"
    assert browser.get("/cluster?page=4").context["node_page"].first == 51, "behind the last page is the last page"
    found = browser.get("/cluster?q=N17").context
    assert [node["name"] for node in found["nodes"]] == ["n17"]
    assert [pool["name"] for pool in found["pools"]] == ["n17"]
    devices = browser.get("/cluster?view=devices&q=n17").context["devices"]
    assert [device["id"] for device in devices] == ["n17.cpu0", "n17.cpu1"]
    assert browser.get("/cluster?pool=n58").context["pools"][0]["name"] == "n58", "the pool that is chosen comes first"
    assert first["pools"][0]["name"] == "n59", "otherwise one with devices out"
    assert len(browser.get("/cluster?view=devices").context["devices"]) == cluster_lists.DEVICES


def test_processes_of_many_hosts_that_are_gone_do_not_bury_the_page(browser) -> None:
    conn = store_connection()
    for number in range(40):
        process_heartbeats.put(conn, ProcessFacts("node", f"n{number}", "", 1, time.time()), "", 0.0)
    conn.execute("UPDATE store.process_heartbeat SET heard_at = heard_at - interval '45 s'")
    page = markup(browser.get("/cluster"))
    assert page.count("no heartbeat for") == cluster_lists.ALERTS
    assert f"{40 - cluster_lists.ALERTS} more processes do not report" in page
    assert f"and {40 - cluster_lists.PROCESSES} more; find those of a host" in page
    assert len(browser.get("/cluster?q=n39").context["alerts"]) == 1


def test_the_timeline_of_a_large_cluster_has_few_empty_lanes_and_names_one_pool(browser) -> None:
    machines(60, devices=2)
    store_connection().execute("UPDATE store.device SET pool = node")
    page = markup(browser.get("/cluster/timeline"))
    assert "and 60 more devices that nobody held" in page
    assert [node.name for node in browser.get("/cluster/timeline?pool=n31").context["chart"].nodes] == ["n31"]
    assert page.count('href="?pool=') == 1, "all pools; none of the sixty stands there"
