"""The pipeline of a played run, over REST, and the sentence on what limits it."""

import pytest

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry.advisor.limits import limit_words
from flexmarl.controlplane.telemetry.flow.pipeline import _place
from flexmarl.store.reads.activity import CommandSpan
from flexmarl.store.reads.pipeline import Slice
from tests.support.played import play
from tests.support.statements import at_most


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, "running", agents={"speaker": {"policy": "solver"}, "listener": {"policy": "solver"}})


def read(api, run, query=""):
    answer = api.get(f"/api/v1/runs/{run.id}/pipeline{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()


@pytest.mark.django_db
def test_a_micro_batch_passes_from_episodes_to_served_weights(api, run) -> None:
    play(run)
    found = read(api, run)
    [lane] = found["policies"]
    [block] = lane["blocks"]
    assert (block["number"], block["status"], block["groups"], block["rows"]) == (1, "applied", 2, 4)
    assert block["started"] < block["ready"] <= block["claimed"] <= block["done"]
    [stepped] = lane["optimizer_steps"]
    assert (stepped["version"], lane["stepped_held"]) == (1, 1), "no engine serves version 1 yet"
    assert lane["publications"] == []
    [row] = found["passed"]["rows"]
    assert (row["ready"], row["claimed"], row["gradient"]) == (1, 1, 1)
    assert (found["passed"]["produced"], found["passed"]["accounted"]) == (1, 1)
    [flow] = found["flow"]
    assert len(flow["ready"]) == len(flow["gradient"]) == 1
    assert found["live"] is True
    assert found["limits"]["basis"] == "the last 5 min"


@pytest.mark.django_db
def test_a_micro_batch_that_nobody_was_told_of_is_not_accounted_for(api, run) -> None:
    play(run)
    conn = store_connection()
    conn.execute("UPDATE store.micro_batch SET status = 'cut' WHERE run_id = %s", [run.no])
    conn.execute("DELETE FROM store.command WHERE run_id = %s AND kind = 'accumulate'", [run.no])
    passed = read(api, run)["passed"]
    assert (passed["produced"], passed["accounted"]) == (1, 0)


@pytest.mark.django_db
def test_the_age_of_samples_is_counted_against_the_weights_that_were_trained(api, run) -> None:
    play(run)
    conn = store_connection()
    conn.execute("UPDATE store.run_state SET step = 1 WHERE run_id = %s", [run.no])
    assert read(api, run)["staleness"] == [{"policy": "solver", "lag": 0, "samples": 4}]
    conn.execute("UPDATE store.sample SET version = -2 WHERE run_id = %s AND draw = 1", [run.no])
    assert {row["lag"]: row["samples"] for row in read(api, run)["staleness"]} == {0: 2, 2: 2}


@pytest.mark.django_db
def test_the_number_of_statements_does_not_follow_the_run(api, run) -> None:
    play(run)
    read(api, run)
    with at_most(27):
        read(api, run)


def place(status, taken=None, *, told=True):
    one = Slice("solver", 0, 0, status, 4, 0, 1, 1.0, None, None)
    claim = CommandSpan(1, "accumulate", "solver", 1, "", -1, 0, 1.0, taken, None, "open") if told else None
    return _place(one, claim)


def test_every_micro_batch_is_in_one_place() -> None:
    assert place("cut") == "ready"
    assert place("cut", 2.0) == "claimed"
    assert place("accumulated", 2.0) == place("applied", told=False) == "gradient"
    assert place("void") == "void"
    assert place("cut", told=False) == "lost"


def account(bubble, *causes, step=None):
    seconds = sum(s for _, s in causes)
    device = {"use": "trainer", "held_s": 100.0, "busy_s": 100 - seconds, "causes": [{"cause": c} for c, _ in causes]}
    return {
        "step": step, "window_s": 60.0, "devices": [device], "bubble_share": bubble, "busy_share": 1 - bubble,
        "causes": [{"cause": c, "seconds": s, "share": s / 100} for c, s in causes],
    }  # fmt: skip


def test_the_sentence_names_the_longest_wait_and_its_window() -> None:
    words = limit_words(account(0.5, ("samples", 40.0), ("weights", 10.0)), [], "running")
    assert words["text"] == "Rollout limits this run: its trainers waited 40 s of 100 s for samples, in the last 60 s."
    assert words["cause"] == "samples"
    assert limit_words(account(0.5, ("trainer", 50.0), step=7), [], "running")["text"].endswith("in step 7.")
    rates = [{"policy": "a", "rollout_s": 30.0}, {"policy": "b", "rollout_s": 10.0}]
    assert "a took 75 % of the engines' work" in limit_words(account(0.5, ("tail", 50.0)), rates, "running")["detail"]


def test_nothing_limits_devices_that_are_busy() -> None:
    assert limit_words(account(0.09, ("samples", 9.0)), [], "running")["cause"] is None
    assert limit_words(account(0.11, ("samples", 11.0)), [], "running")["cause"] == "samples"
    assert "waits for its devices" in limit_words({**account(0.0), "devices": []}, [], "queued")["text"]
