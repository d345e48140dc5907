"""Cohorts, lag, store and decisions on the pages of a run: what is there, what is empty, what is asked for."""

import json

import pytest

from flexmarl.contracts.rulings import Ruling, RulingKind
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.flow.cohorts import CohortState
from flexmarl.store.control.decisions import Logged, _write_rulings
from flexmarl.store.reads.transitions import KINDS
from flexmarl.store.telemetry.sharing_reports import SharingReport, put_report
from tests.support.controlplane import SEATS, read
from tests.support.played import play, remember_check
from tests.support.statements import at_most
from webui.views import joint, moved
from webui.views.joint_words import COHORT_STATES, DECISIONS, TRANSITIONS

HOSTILE = "<img src=x onerror=alert(1)>"
pytestmark = pytest.mark.django_db


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, "running", agents=SEATS)


def test_a_run_without_rows_says_when_the_cards_fill(browser, run) -> None:
    text = read(browser, run, "performance")
    for words in ("No cohort yet", "No row yet", "Rows are written with the first episode group that settles."):
        assert words in text
    assert "No decisions yet" in read(browser, run, "logs?view=decisions")


def test_cohorts_tell_state_vector_and_what_they_wait_for(browser, run) -> None:
    played = play(run)
    text = read(browser, run, "parts/joint")
    assert "Applied" in text
    assert "solver v0" in text
    played.story.play(2, 3)
    text = read(browser, run, "parts/joint?cohorts=under_way")
    assert "2 of 4 episode groups" in text
    assert "v1 is committed, v0 is pinned" in text
    assert "No cohort is in this state" in read(browser, run, "parts/joint?cohorts=abandoned")


def test_the_archive_is_shown_by_age_and_origin_where_a_run_replays(browser, run) -> None:
    plain = read(browser, run, "parts/joint")
    assert "Archive of replay" not in plain
    assert "Replayed rows are older" not in plain
    rule = {"type": "archive", "share": 0.5, "max_age": 4, "max_uses": 1, "order": "newest"}
    run.spec["sampling"]["replay"] = rule
    run.save()
    empty = read(browser, run, "parts/joint")
    assert "The archive is empty" in empty
    assert "Replayed rows are older" in empty
    aged = {"policy": "solver", "age": 3, "origin": "run", "groups": 7, "rows": 56}
    progress = {"rows_replayed": 1234, "archive": [aged]}
    store_connection().execute(
        "UPDATE store.run_state SET progress = progress || %s::jsonb WHERE run_id = %s", [json.dumps(progress), run.no]
    )
    text = read(browser, run, "parts/joint")
    for words in (
        "234 rows replayed",
        "this run",
        ">3</td>",
        ">7</td>",
        ">56</td>",
        "an age of 4 versions and 1 time",
    ):
        assert words in text


def test_stored_successes_have_a_card_of_their_own_words(browser, run) -> None:
    run.spec["sampling"]["replay"] = {"type": "rescue", "max_age": 9, "max_uses": 3, "weight": 1.0}
    run.save()
    assert "No success is stored" in read(browser, run, "parts/joint")
    progress = {
        "rows_replayed": 8,
        "archive": [{"policy": "solver", "age": 3, "origin": "run", "groups": 7, "rows": 8}],
    }
    store_connection().execute(
        "UPDATE store.run_state SET progress = progress || %s::jsonb WHERE run_id = %s", [json.dumps(progress), run.no]
    )
    text = " ".join(read(browser, run, "parts/joint").split())
    assert "Archive of replay" not in text
    assert "the stored success of that task takes the place of a member, up to an age of 9 versions and 3 times" in text


def test_what_is_shared_in_and_out_is_shown_with_what_is_wrong_and_what_to_do(browser, run) -> None:
    assert "Shared in" not in read(browser, run, "parts/joint")
    run.spec["sampling"]["sharing"] = {"type": "exchange", "task_set": "sums", "foreign": 4, "publish": True}
    run.save()
    silent = read(browser, run, "parts/joint")
    assert "No report" in silent
    assert "No rollout worker has reported within a minute" in silent
    conn, refused = store_connection(), {"too_long": 7, HOSTILE: 1}
    put_report(conn, run.no, "w", SharingReport("connected", "", 1234, 567, 89, refused))
    text = read(browser, run, "parts/joint")
    for words in ("Connected", "89 of 567 rollouts received", "234 rollouts published", "longer than this run allows"):
        assert words in text
    assert HOSTILE not in text
    put_report(conn, run.no, "w", SharingReport("unreachable", "ClientConnectorError", 1234, 567, 89, refused))
    lost = read(browser, run, "parts/joint")
    for words in ("Unreachable", "The run goes on by itself", "FLEXMARL_EXCHANGE_URL", "ClientConnectorError"):
        assert words in lost


def test_the_store_card_counts_rows_by_place_and_names_broken_promises(browser, run) -> None:
    play(run)
    text = read(browser, run, "parts/store")
    assert "not checked yet" in text
    assert "Every row is counted once." in text
    conn = store_connection()
    remember_check(run)
    assert "checks passed" in read(browser, run, "parts/store")
    conn.execute("DELETE FROM store.sample WHERE run_id = %s AND draw = 0", [run.no])
    remember_check(run)
    text = read(browser, run, "parts/store")
    assert "checks failed" in text
    assert "More rows were trained than stored" in text


def test_a_large_run_is_counted_when_somebody_asks(browser, run, monkeypatch) -> None:
    play(run)
    monkeypatch.setattr(joint, "COUNTED_AT_ONCE", -1)
    assert "Count rows" in read(browser, run, "performance")
    assert "Every row is counted once." in read(browser, run, "performance?count=1")


def test_decisions_are_filtered_and_walked_by_address(browser, run, monkeypatch) -> None:
    play(run)
    conn = store_connection()
    _write_rulings(conn, run.no, [Logged(1, 1.0, Ruling(RulingKind.GROUP_REFUSED, HOSTILE, "", 0, "draw:9", 2))])
    text = read(browser, run, "logs?view=decisions")
    assert "Cut a micro-batch" in text
    assert HOSTILE not in text
    assert "2 rows out" in text
    text = read(browser, run, "logs?view=decisions&kind=optimizer_step&policy=solver")
    assert ("Step</td>" in text, "Cut a micro-batch</td>" in text) == (True, False)
    assert "No decision matches" in read(browser, run, "logs?view=decisions&step=77")
    assert "This page cannot be read" in read(browser, run, "logs?view=decisions&cursor=abc")
    monkeypatch.setattr(joint, "LINES", 2)
    first = read(browser, run, "logs?view=decisions")
    older = first.split('rel="next"')[0].rpartition('href="?')[2].split('"')[0].replace("&amp;", "&")
    assert "an older page" in read(browser, run, f"logs?{older}")


def test_transitions_are_filtered_and_walked_by_address(browser, run, monkeypatch) -> None:
    assert "No transitions yet" in read(browser, run, "logs?view=transitions")
    play(run)
    text = read(browser, run, "logs?view=transitions")
    assert all(word in text for word, _ in TRANSITIONS.values() if word != "Served")
    assert "<code>driver</code>" in text
    assert "<code>t1.1.1</code>" in text
    text = read(browser, run, "parts/transitions?moved=step&policy=solver")
    assert (">Step</td>" in text, "Gradient accumulated</td>" in text, 'Version"> v1</td>' in text) == (
        True,
        False,
        True,
    )
    assert "Gradient accumulated</td>" in read(browser, run, "logs?view=transitions&step=1")
    assert "No transition matches" in read(browser, run, "logs?view=transitions&step=77")
    assert "This page cannot be read" in read(browser, run, "logs?view=transitions&cursor=abc")
    monkeypatch.setattr(moved, "LINES", 2)
    first = read(browser, run, "logs?view=transitions")
    older = first.split('rel="next"')[0].rpartition('href="?')[2].split('"')[0].replace("&amp;", "&")
    assert "an older page" in read(browser, run, f"logs?{older}")


def test_every_state_and_kind_has_its_word() -> None:
    assert tuple(TRANSITIONS) == KINDS
    assert set(COHORT_STATES) == set(CohortState)
    assert set(DECISIONS) == set(queries.DECISION_KINDS) >= set(RulingKind)


@pytest.mark.parametrize(
    ("path", "most"),
    [("parts/joint", 14), ("parts/store", 24), ("parts/decisions", 9), ("parts/transitions", 9), ("performance", 57)],
)
def test_the_number_of_statements_of_a_page_is_bounded(browser, run, path, most) -> None:
    play(run)
    read(browser, run, path)
    with at_most(most, path):
        read(browser, run, path)
