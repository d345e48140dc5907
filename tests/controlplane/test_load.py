"""Engines, their moves and the load of a run: over REST and on the page, with nothing told and with something."""

import time

import pytest

from flexmarl.contracts.commands import LoadWeights
from flexmarl.contracts.events import DeviceUse, RequestedTurns
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control import engines as registry
from flexmarl.store.control import runs
from flexmarl.store.telemetry import intervals
from flexmarl.store.telemetry.intervals import BusyInterval
from flexmarl.store.telemetry.load_reports import EngineReport, OpenTurn, TurnReport, put_asked, put_engines
from tests.controlplane.test_joint import read, refused
from tests.support.controlplane import SEATS
from tests.support.statements import at_most
from tests.support.store_story import DIGEST, Story

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, "running", agents=SEATS)


def served(run, node: str = "box") -> int:
    """Let an engine of the run serve version 3 and tell its load, and a worker ask; returns its lease."""
    conn = store_connection()
    story = Story(conn, run_id=run.no, node=node)
    story.lease = story_lease(conn, run.no)
    lease_id = story.granted()[DeviceUse.ENGINE]
    incarnation = f"e{lease_id}.1.1"
    story.hosted(lease_id, DeviceUse.ENGINE, incarnation)
    order = LoadWeights(lease_id=lease_id, policy="solver", version=3, digest=DIGEST)
    taken = story.take(story.issue(order))
    registry.served(conn, taken, lease_id, incarnation, policy="solver", version=3, digest=DIGEST, seconds=0.1)
    put_engines(conn, [EngineReport(run.no, lease_id, incarnation, 6, 2, 8, 500, 100, None, None)])
    now = time.time()
    turns = [
        OpenTurn("speaker", "solver", 7, 1, 1, 2, now - 40, now - 30, 99, incarnation, 1),
        OpenTurn("listener", "solver", 8, 0, 1, 0, now - 9, now - 9, 0, "", 0),
    ]
    asked = {"solver": RequestedTurns(waiting=4, in_flight=8)}
    put_asked(conn, run.no, "w", TurnReport(asked, 12, turns, {("silent", incarnation): 3}, {"speaker": (7, 4)}))
    conn.execute(
        "INSERT INTO store.ruling (run_id, seq, ord, kind, cause, policy, target, reason, at) VALUES "
        "(%(run)s, 90, 0, 'engine_assigned', '', 'solver', %(t)s, 'a free place', clock_timestamp()), "
        "(%(run)s, 91, 0, 'engine_moved', 'disparity', 'solver', %(t)s, 'solver has 9 turns', clock_timestamp())",
        {"run": run.no, "t": f"lease:{lease_id}"},
    )
    return lease_id


def story_lease(conn, run_no: int):
    [lease] = [one for one in runs.claim_runs(conn, "driver-1", 30.0) if one.run_id == run_no]
    return lease


def test_a_run_of_which_nobody_told_anything_has_figures_that_say_so(api, run) -> None:
    found = read(api, run, "load")
    assert (found["live"], found["told"], found["open"], found["skew"]) == (True, False, 0, None)
    [policy] = found["policies"]
    assert policy == {
        "policy": "solver", "roles": ["speaker", "listener"], "waiting": 0, "in_flight": 0, "engines": 0, "slots": None,
    }  # fmt: skip
    assert [found[name] for name in ("engines", "queues", "asked", "longest", "reply_moves")] == [[]] * 5
    assert read(api, run, "engines")["results"] == []
    assert read(api, run, "engine-moves")["results"] == []


def test_demand_stands_against_capacity_and_engines_tell_their_state(api, run) -> None:
    lease_id = served(run)
    found = read(api, run, "load?window_s=60")
    [policy] = found["policies"]
    assert (policy["waiting"], policy["in_flight"], policy["engines"], policy["slots"]) == (4, 8, 1, 8)
    assert (found["told"], found["open"], found["skew"]) == (True, 12, 1.0)
    assert found["states"] == {"active": 1}
    [engine] = read(api, run, "engines?state=active&policy=solver")["results"]
    assert engine == found["engines"][0] | {"load": engine["load"]}
    assert (engine["state"], engine["suspect"]) == ("active", "")
    assert engine["serves"] == [{"policy": "solver", "version": 3, "former_version": None}]
    load = engine["load"]
    assert (load["running"], load["waiting"], load["slots"]) == (6, 2, 8)
    assert (load["cache_use"], load["hit_rate"], load["tokens_per_s"]) == (None, None, None)
    assert read(api, run, "engines?state=gone")["results"] == []
    assert read(api, run, "engines?policy=other")["results"] == []
    first, second = found["longest"]
    assert (first["role"], first["draw"], first["tokens"], first["device_id"]) == ("speaker", 7, 99, "box.cpu0")
    assert 25 < first["age_s"] < first["episode_age_s"]
    assert (second["engine"], second["device_id"]) == ("", "")
    assert found["seats"] == [
        {"role": "speaker", "open": 7, "in_flight": 4}, {"role": "listener", "open": 0, "in_flight": 0},
    ]  # fmt: skip
    [moved] = found["reply_moves"]
    assert (moved["cause"], moved["turns"], moved["device_id"]) == ("silent", 3, "box.cpu0")
    assert moved["engine"] == f"e{lease_id}.1.1"
    [point] = found["queues"]
    assert (point["running"], point["waiting"], point["skew"]) == (6, 2, 1)
    assert [(one["policy"], one["waiting"]) for one in found["asked"]] == [("solver", 4)]


def test_moves_are_paged_with_their_reason(api, run) -> None:
    served(run)
    whole = read(api, run, "engine-moves")["results"]
    assert [(one["kind"], one["cause"]) for one in whole] == [("engine_moved", "disparity"), ("engine_assigned", "")]
    assert whole[0]["reason"] == "solver has 9 turns"
    assert (whole[0]["device_id"], whole[0]["until_served_s"]) == ("box.cpu0", None)
    page = read(api, run, "engine-moves?limit=1")
    assert page["results"] == whole[:1]
    assert api.get(page["next"]).json()["results"] == whole[1:]
    assert read(api, run, "engine-moves?kind=engine_assigned")["results"] == whole[1:]


def test_swaps_are_paged_with_what_was_moved(api, run) -> None:
    rows = [
        BusyInterval(0, "bind", "solver", 10.0, 10.5),
        BusyInterval(1, "train", "solver", 10.5, 11.0, tokens=5),
        BusyInterval(2, "suspend", "solver", 11.0, 11.25, bytes=4096),
        BusyInterval(3, "resume", "solver", 12.0, 12.5, bytes=4096),
    ]
    intervals.put(store_connection(), run.no, 7, "box.cpu1", incarnation="t7.1.1", rows=rows)
    whole = read(api, run, "swaps")["results"]
    assert [(one["phase"], one["bytes"], one["seconds"]) for one in whole] == [
        ("resume", 4096, 0.5), ("suspend", 4096, 0.25), ("bind", 0, 0.5),
    ]  # fmt: skip
    assert {(one["policy"], one["device_id"], one["lease_id"]) for one in whole} == {("solver", "box.cpu1", 7)}
    page = read(api, run, "swaps?limit=2")
    assert page["results"] == whole[:2]
    assert api.get(page["next"]).json()["results"] == whole[2:]
    assert read(api, run, "swaps?phase=suspend")["results"] == whole[1:2]
    assert read(api, run, "swaps?policy=other")["results"] == []
    assert refused(api, run, "swaps?phase=guess") == "unknown_value"
    assert refused(api, run, "swaps?cursor=nonsense") == "not_a_cursor"


def test_an_ended_run_is_asked_for_nothing_and_its_window_ends_with_it(api, run) -> None:
    served(run)
    store_connection().execute(
        "UPDATE store.run_state SET status = 'completed', finished_at = clock_timestamp() WHERE run_id = %s", [run.no]
    )
    found = read(api, run, "load")
    assert (found["live"], found["told"], found["open"], found["longest"]) == (False, False, 0, [])
    assert found["policies"][0]["waiting"] == 0
    assert len(found["queues"]) == 1, "what was told until the end stays"


def test_a_page_of_figures_takes_few_statements_whatever_it_lists(api, run) -> None:
    served(run)
    for path, most in (("load", 16), ("engines", 10), ("engine-moves", 9)):
        with at_most(most, path):
            read(api, run, path)


def test_what_is_no_state_window_or_cursor_is_refused(api, run) -> None:
    assert refused(api, run, "engines?state=asleep") == "unknown_value"
    assert refused(api, run, "load?window_s=5") == "out_of_range"
    assert refused(api, run, "load?window_s=7200") == "out_of_range"
    assert refused(api, run, "engine-moves?kind=guess") == "unknown_value"
    assert refused(api, run, "engine-moves?limit=0") == "out_of_range"
    assert refused(api, run, "engine-moves?cursor=nonsense") == "not_a_cursor"
