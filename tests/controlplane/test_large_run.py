"""The tab Logs of a large run: its first view costs the same whatever the run's size."""

import time

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from tests.support.played import play, remember_check

pytestmark = pytest.mark.django_db

FIRST_VIEW_S = 0.3
EVENTS, NOTES, LINES = 200_000, 50_000, 50_000
LARGE = """
INSERT INTO store.event (run_id, seq, kind, body, at)
  SELECT %(run)s, %(first)s + n, 'group_settled', jsonb_build_object('draw', n, 'episodes', jsonb_build_array(
    jsonb_build_object('member', 0, 'samples', jsonb_build_array(repeat('x', 200))))), now()
  FROM generate_series(1, %(events)s) n;
INSERT INTO store.note (run_id, seq, ord, level, text, at)
  SELECT %(run)s, %(first)s + n, 0, 'info', 'Step ' || n || ' is done.', now() FROM generate_series(1, %(notes)s) n;
INSERT INTO store.log (run_id, at, level, component, node, agent, text, fields)
  SELECT %(run)s, now(), 'info', 'driver', 'box', '', 'line ' || n, '{}'
  FROM generate_series(1, %(lines)s) n;
"""


def test_the_first_view_of_a_large_run_takes_no_longer(browser, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    play(run)
    remember_check(run)
    conn, address = store_connection(), f"/runs/{run.key}/logs"
    fill(conn, run.no, 1000, 500, 500)  # as many as a view shows
    small = quickest(browser, address)
    fill(conn, run.no, EVENTS, NOTES, LINES)
    large = quickest(browser, address)
    assert large < max(FIRST_VIEW_S, 1.5 * small), f"{large:.3f} s, of a small run {small:.3f} s"


def fill(conn, number: int, events: int, notes: int, lines: int) -> None:
    first = conn.execute("SELECT max(seq) FROM store.event WHERE run_id = %s", [number]).fetchone()[0]
    for statement in LARGE.split(";")[:-1]:
        conn.execute(statement, {"run": number, "first": first, "events": events, "notes": notes, "lines": lines})
    conn.execute("ANALYZE store.event, store.note, store.log")  # as the server does by itself


def quickest(browser, address: str) -> float:
    """Seconds of the quickest of some views: others may hold the cores during any of them."""
    found = []
    for _ in range(7):
        began = time.monotonic()
        assert browser.get(address).status_code == 200
        found.append(time.monotonic() - began)
    return min(found)
