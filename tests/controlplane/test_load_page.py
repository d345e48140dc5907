"""The Load page: empty, told, filtered, as a table, ended; hostile text stays text."""

import pytest

from flexmarl.contracts.wire import EVALUATION_DRAWS
from flexmarl.controlplane.common.store import store_connection
from tests.controlplane.test_load import served
from tests.support.controlplane import SEATS, read
from tests.support.statements import at_most

HOSTILE = "<img src=x onerror=alert(1)>"
pytestmark = pytest.mark.django_db


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, "running", agents=SEATS)


def test_a_run_without_engines_says_what_it_waits_for(browser, run) -> None:
    text = read(browser, run, "performance/load")
    for words in (
        "No engine yet: turns wait until the run has devices.",
        "Appears when engines report",
        "Engines appear when the run gets its devices.",
        "No turn is open",
        "No moves",
        "No replies moved",
    ):
        assert words in text
    assert "resources.engine_policies" in text, "why nothing moves here"


def test_what_was_told_is_on_the_page_and_what_was_not_is_named(browser, run) -> None:
    lease_id = served(run)
    text = read(browser, run, "performance/load")
    assert "solver waits most: 4 turns for 1 engine, where 8 replies are being generated." in text
    assert "The oldest turn, of speaker, has waited" in text
    for words in (
        "Active",
        "v3",
        "not reported",
        f"e{lease_id}.1.1",
        "solver has 9 turns",
        "had the longer queue",
        "silence",
    ):
        assert words in text
    assert "trajectories?draw=7" in text
    assert "7 / 1" in text
    assert "No moves" not in text


def test_turns_of_an_evaluation_count_apart(browser, run) -> None:
    served(run)
    text = read(browser, run, "parts/load")
    assert "eval" not in text
    later = "UPDATE store.open_turns SET longest = jsonb_set(longest, '{0,draw}', %s::text::jsonb)"
    store_connection().execute(later, [EVALUATION_DRAWS + 12])
    text = read(browser, run, "parts/load")
    assert "eval 12 / 1" in text
    assert f"trajectories?origin=eval&amp;draw={EVALUATION_DRAWS + 12}" in text


def test_a_doubted_engine_says_so_in_place_of_its_state(browser, run) -> None:
    served(run)
    store_connection().execute("UPDATE store.node SET heartbeat_at = clock_timestamp() - interval '1 minute'")
    text = read(browser, run, "parts/load")
    assert "Suspect" in text
    assert "its node has missed its heartbeats; last known active" in text
    assert "1 engine is suspect: box.cpu0." in text
    assert "Suspect" in read(browser, run, "performance/load?state=suspect")


def test_an_engine_that_was_lost_says_why(browser, run) -> None:
    lease_id = served(run)
    store_connection().execute(
        "INSERT INTO store.event (run_id, seq, kind, body, at) VALUES (%s, 900, 'child_lost', %s::jsonb, now())",
        [run.no, f'{{"lease_id": {lease_id}, "reason": "the child ended with code -9"}}'],
    )
    text = read(browser, run, "parts/load")
    assert "lost 1 incarnation" in text
    assert "the child ended with code -9" in text


def test_lists_are_narrowed_by_the_address(browser, run) -> None:
    served(run)
    assert "No engine matches" in read(browser, run, "parts/load?state=gone")
    text = read(browser, run, "parts/load?policy=other")
    assert "No engine matches" in text
    assert "7 / 1" not in text
    assert "box.cpu0" in read(browser, run, "parts/load?state=active&policy=solver")
    text = read(browser, run, "performance/load?view=table&window=60")
    assert "Table of demand and queues" in text
    assert "window=60" in text
    assert 'id="load-charts"' not in text
    assert read(browser, run, "performance/load?window=9&state=asleep"), "what is no choice is as good as none"


def test_an_ended_run_asks_for_nothing(browser, run) -> None:
    served(run)
    store_connection().execute(
        "UPDATE store.run_state SET status = 'completed', finished_at = clock_timestamp() WHERE run_id = %s", [run.no]
    )
    text = read(browser, run, "performance/load")
    assert "The run has ended: engines receive no requests." in text
    assert "The run has ended; finished ones are among its trajectories." in text


def test_what_workers_told_is_text(browser, run) -> None:
    served(run)
    conn = store_connection()
    conn.execute("UPDATE store.moved_turns SET cause = %s", [HOSTILE])
    conn.execute("UPDATE store.ruling SET reason = %s", [HOSTILE])
    conn.execute("UPDATE store.lease SET device_id = device_id, reason = %s", [HOSTILE])
    text = read(browser, run, "performance/load")
    assert HOSTILE not in text
    assert "&lt;img src=x" in text


def test_pages_take_few_statements_whatever_they_show(browser, run) -> None:
    served(run)
    for path, most in (("performance/load", 26), ("parts/load", 20)):
        read(browser, run, path)
        with at_most(most, path):
            read(browser, run, path)
