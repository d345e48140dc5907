"""What a run has cost: each device hour at the price that its pool had then, by pool and over time."""

import pytest

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory.models import Pool
from flexmarl.controlplane.telemetry.timeline.device_time import engines_over_time
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts, register_node
from flexmarl.store.reads.activity import LeaseHistory, LeaseSpan
from tests.support.controlplane import SPEC, key

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(api):
    made = api.post("/api/v1/runs", {"spec": SPEC}, format="json", headers={"Idempotency-Key": key()})
    conn = store_connection()
    for name in ("dear", "cheap"):
        facts = [DeviceFacts(f"{name}.{i}", "cuda", i, name, 2**30) for i in range(2)]
        register_node(conn, NodeFacts(name, "127.0.0.1:1", name, "1", {}), facts)
        conn.execute("UPDATE store.device SET pool = %s WHERE node = %s", [name, name])
    return made.json()


def lease(run, device, hours_ago, until_hours_ago=None, use="engine", beside=None):
    """Lease a device from some hours ago, and give it back."""
    return (
        store_connection()
        .execute(
            "INSERT INTO store.lease (device_id, run_id, use, beside, granted_at, state, ended_at)"
            " VALUES (%s, %s, %s, %s, now() - %s * interval '1 hour', %s, now() - %s * interval '1 hour')"
            " RETURNING id",
            [
                device,
                run["no"],
                use,
                beside,
                hours_ago,
                "held" if until_hours_ago is None else "ended",
                until_hours_ago,
            ],
        )
        .fetchone()[0]
    )


def price(pool, price, hours_ago):
    store_connection().execute(
        "INSERT INTO store.pool_price (pool, price, since) VALUES (%s, %s, now() - %s * interval '1 hour')",
        [pool, price, hours_ago],
    )


def cost(api, run):
    answer = api.get(f"/api/v1/runs/{run['id']}/cost")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_price_that_changes_holds_from_then_on(api, run) -> None:
    price("dear", 2.0, 10)
    price("dear", 5.0, 1)
    lease(run, "dear.0", 4, 0.5)  # 3 h at 2, half an hour at 5
    found = cost(api, run)
    assert found["cost"] == pytest.approx(3 * 2.0 + 0.5 * 5.0, abs=1e-3)
    assert found["device_hours"] == pytest.approx(3.5, abs=1e-3)
    assert found["unpriced_hours"] == 0.0
    store_connection().execute("UPDATE store.device SET pool = 'cheap' WHERE node = 'dear'")
    assert cost(api, run)["cost"] == pytest.approx(8.5, abs=1e-3), "it was of the pool dear then"


def test_pools_add_up_and_hours_without_a_price_are_told_beside(api, run) -> None:
    price("dear", 3.0, 1)
    lease(run, "dear.0", 2, 0)  # one hour before there was a price
    lease(run, "cheap.0", 2, 0)
    found = cost(api, run)
    assert found["cost"] == pytest.approx(3.0, abs=1e-3)
    assert found["unpriced_hours"] == pytest.approx(1.0 + 2.0, abs=1e-3)
    assert {one["pool"]: one["cost"] for one in found["pools"]} == {"cheap": None, "dear": pytest.approx(3.0, abs=1e-3)}


def test_a_device_that_an_engine_and_a_trainer_share_costs_once(api, run) -> None:
    price("dear", 1.0, 10)
    engine = lease(run, "dear.0", 2)
    lease(run, "dear.0", 2, use="trainer", beside=engine)
    found = cost(api, run)
    assert found["device_hours"] == pytest.approx(2.0, abs=0.05)
    assert found["cost"] == pytest.approx(2.0, abs=0.05)


def test_the_course_over_time_never_falls_and_ends_at_what_it_costs(api, run) -> None:
    price("dear", 6.0, 10)
    lease(run, "dear.0", 3, 2)
    lease(run, "dear.1", 1, 0)
    found = cost(api, run)
    course = [point["cost"] or 0.0 for point in found["over_time"]]
    assert course == sorted(course)
    assert len(course) == 60
    assert course[-1] == pytest.approx(found["cost"]) == pytest.approx(12.0, abs=1e-2)
    assert course[20] == course[38] == pytest.approx(6.0, abs=1e-2), "nothing was held in the second hour"


def test_prices_are_kept_as_pools_change_and_equal_ones_are_not_noted_twice(admin_api) -> None:
    body = {"name": "spot", "device_hour_price": 1.5, "preemptible": True}
    made = admin_api.post("/api/v1/pools", body, format="json", headers={"Idempotency-Key": key()})
    assert made.status_code == 201, made.content
    assert made.json()["preemptible"] is True
    for change in ({"device_hour_price": 2.5}, {"note": "x"}, {"device_hour_price": None, "preemptible": False}):
        version = Pool.objects.get(name="spot").version
        answer = admin_api.patch("/api/v1/pools/spot", change, format="json", headers={"If-Match": f'"{version}"'})
        assert answer.status_code == 200, answer.content
    rows = (
        store_connection().execute("SELECT price FROM store.pool_price WHERE pool = 'spot' ORDER BY since").fetchall()
    )
    assert [row[0] for row in rows] == [1.5, 2.5, None]
    assert Pool.objects.get(name="spot").preemptible is False


def test_a_run_that_held_nothing_costs_nothing_and_its_page_says_what_it_costs(api, run, browser) -> None:
    assert cost(api, run)["cost"] is None
    assert "run-cost" not in browser.get(f"/runs/{run['key']}").content.decode()
    price("dear", 6.0, 10)
    lease(run, "dear.0", 3, 2)
    page = " ".join(browser.get(f"/runs/{run['key']}").content.decode().split())
    assert 'id="run-cost"' in page
    assert "dear 6.00" in page
    lease(run, "dear.1", 2, 0)
    page = " ".join(browser.get(f"/runs/{run['key']}").content.decode().split())
    assert 'aria-label="Cost since the first lease: 9.00 after half of the time, 18.00 at the end"' in page
    assert page.count('<svg class="spark') == 1, "a fleet of one size draws no line"


def held(no: int, use: str, since: float, until: float | None, leader: int = 0) -> LeaseSpan:
    return LeaseSpan(no, f"box.{no}", "box", "cpu", "default", use, "held", 1, since, until, None, leader)


def test_engines_over_time_are_those_held_at_each_moment_and_one_of_two_devices_is_one() -> None:
    spans = [
        held(1, "engine", 0.0, None),
        held(2, "trainer", 0.0, None),
        held(3, "engine", 2.0, 6.0),
        held(4, "engine", 2.0, 6.0, leader=3),
        held(5, "engine", 5.0, 8.0),
    ]
    assert engines_over_time(LeaseHistory(10.0, spans), 5) == [1, 2, 3, 2, 1]
    assert engines_over_time(LeaseHistory(10.0, []), 5) == []
