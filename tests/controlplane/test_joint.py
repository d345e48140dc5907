"""Cohorts, lag, rows by place and decisions of a played run, over REST."""

import pytest

from flexmarl.contracts.commands import GroupOrder, PlayGroups, WriteCheckpoint
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.rulings import Ruling, RulingKind
from flexmarl.contracts.wire import Origin, PolicyPin
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry.flow import cohorts
from flexmarl.controlplane.telemetry.flow.cohorts import CohortState, state_of, waits_for
from flexmarl.store.control.decisions import Logged, _write_rulings
from flexmarl.store.reads.cohort_rows import CohortBatches, CohortGroups
from tests.support.controlplane import SEATS, set_state
from tests.support.played import play
from tests.support.statements import at_most


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, "running", agents=SEATS)


@pytest.fixture
def played(run):
    return play(run)


def read(api, run, path):
    answer = api.get(f"/api/v1/runs/{run.id}/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def refused(api, run, path):
    answer = api.get(f"/api/v1/runs/{run.id}/{path}")
    assert answer.status_code == 400, answer.content
    return answer.json()["errors"][0]["code"]


def rule(run, *lines: Logged[Ruling]) -> None:
    _write_rulings(store_connection(), run.no, lines)


@pytest.mark.django_db
def test_a_run_without_rows_answers_with_nothing(api, run) -> None:
    assert read(api, run, "cohorts")["results"] == []
    assert read(api, run, "decisions")["results"] == []
    found = read(api, run, "store")
    assert (found["policies"], found["rows"], found["payload_bytes"], found["segments"]) == ([], 0, 0, 0)
    assert (found["accounted"], found["size_bytes"]) == (True, sum(table["size_bytes"] for table in found["tables"]))
    [policy] = read(api, run, "lag")["policies"]
    assert (policy["own_now"], policy["version"], policy["steps"]) == (None, None, [])


@pytest.mark.django_db
def test_a_cohort_goes_from_its_groups_to_applied(api, run, played) -> None:
    [first] = read(api, run, "cohorts")["results"]
    assert (first["state"], first["pins"], first["groups"], first["groups_settled"]) == ("applied", {"solver": 0}, 2, 2)
    assert (first["waits_for"], first["policies"][0]["applied"], first["policies"][0]["version"]) == ("", 1, 1)
    played.story.play(2, 3)
    [same] = read(api, run, "cohorts?state=open&state=playing")["results"]
    assert (same["state"], same["waits_for"]) == ("playing", "2 of 4 episode groups")
    assert read(api, run, "cohorts?state=applied")["results"] == []
    assert read(api, run, "cohorts?before=0")["results"] == []
    assert refused(api, run, "cohorts?limit=0") == "out_of_range"


@pytest.mark.django_db
def test_lag_now_is_what_a_row_of_the_oldest_cohort_under_way_would_have(api, run, played) -> None:
    [policy] = read(api, run, "lag")["policies"]
    assert (policy["bound"], policy["version"], policy["own_now"], policy["pinned"]) == (0, 1, None, [])
    played.story.play(2, 3)
    [policy] = read(api, run, "lag")["policies"]
    assert (policy["own_now"], policy["pinned"]) == (1, [0])
    rule(run, Logged(1, 1.0, Ruling(RulingKind.ROWS_DROPPED, "older than 1", "solver", 0, "draw:2", 3, "stale")))
    [policy] = read(api, run, "lag")["policies"]
    assert policy["dropped"] == [{"cause": "stale", "rows": 3}]


@pytest.mark.django_db
def test_every_row_is_in_one_place(api, run, played) -> None:
    [places] = read(api, run, "store")["policies"]
    assert (places["written"], places["applied"], places["ready"], places["recorded"]) == (4, 4, 0, 0)
    played.story.settle(2, 3)
    rule(run, Logged(9, 1.0, Ruling(RulingKind.GROUP_REFUSED, "no signal", "", 0, "draw:3", 2)))
    [places] = read(api, run, "store")["policies"]
    assert (places["written"], places["ready"], places["ruled_out"], places["recorded"]) == (8, 2, 2, 2)
    played.story.cut(1, 2)
    [places] = read(api, run, "store")["policies"]
    assert (places["ready"], places["cut"]) == (0, 2)
    found = read(api, run, "store")
    assert found["accounted"]
    assert min(found["payload_bytes"], found["size_bytes"]) > 0
    assert {table["attached"] for table in found["tables"]} == {True}
    played.story.settle(4)
    rule(run, Logged(10, 1.0, Ruling(RulingKind.GROUP_SURPLUS, "settled after it was cancelled", "", 0, "draw:4", 2)))
    played.story.settle(5)
    [places] = read(api, run, "store")["policies"]
    assert (places["written"], places["ready"], places["ruled_out"], places["left"]) == (12, 2, 4, 0)
    set_state(run, status="completed")
    [places] = read(api, run, "store")["policies"]
    assert (places["ready"], places["left"], places["recorded"]) == (0, 2, 6), "nothing waits in a run that ended"
    assert read(api, run, "cohorts")["results"][0]["groups_surplus"] == 1
    store_connection().execute("DELETE FROM store.sample WHERE run_id = %s AND draw = 0", [run.no])
    found = read(api, run, "store")
    assert (found["accounted"], found["policies"][0]["missing"]) == (True, 0), "the row that was left hides it"
    store_connection().execute("DELETE FROM store.sample WHERE run_id = %s AND draw = 1", [run.no])
    found = read(api, run, "store")
    assert (found["accounted"], found["policies"][0]["missing"]) == (False, 2)


@pytest.mark.django_db
def test_decisions_are_listed_newest_first_with_event_and_reason(api, run, played) -> None:
    rule(run, Logged(played.story._seq, 1.0, Ruling(RulingKind.COHORT_SETTLED, "every group is settled", "", 0)))
    found = read(api, run, "decisions")
    kinds = [row["kind"] for row in found["results"]]
    assert kinds.index("optimizer_step") < kinds.index("accumulate") < kinds.index("play_groups")
    assert [row["seq"] for row in found["results"]] == sorted((row["seq"] for row in found["results"]), reverse=True)
    [ruling] = read(api, run, "decisions?kind=cohort_settled")["results"]
    assert (ruling["type"], ruling["cohort"], ruling["reason"]) == ("ruling", 0, "every group is settled")
    assert ruling["event"] != ""
    [step] = read(api, run, "decisions?kind=optimizer_step&policy=solver")["results"]
    assert (step["command"] is not None, step["status"]) == (True, "done")
    assert read(api, run, "decisions?policy=other")["results"] == []


@pytest.mark.django_db
def test_each_decision_is_of_the_cohort_whose_step_it_is_about(api, run, played) -> None:
    """A gradient is of its micro-batch's cohort; an evaluation and a checkpoint of the step that they follow."""
    pins = {"solver": PolicyPin(version=1, digest="0" * 64)}
    order = GroupOrder(draw=2**30, task_seed=1, members=1)
    played.story.issue(
        PlayGroups(pool="default", epoch=1, origin=Origin.EVAL, groups=(order,), pins=pins, sampling_seed=1, cohort=1)
    )
    trainer = played.leases[DeviceUse.TRAINER]
    played.story.issue(WriteCheckpoint(lease_id=trainer, label="last", step=1, pins=pins))
    of_first = read(api, run, "decisions?cohort=0&limit=100")["results"]
    assert of_first == read(api, run, "decisions?step=1&limit=100")["results"]
    assert read(api, run, "transitions?step=1") == read(api, run, "transitions?cohort=0")
    assert {row["kind"] for row in of_first} >= {"play_groups", "cut_micro_batch", "accumulate", "write_checkpoint"}
    assert sum(row["kind"] == "play_groups" for row in of_first) == 2
    everything = read(api, run, "decisions?limit=100")["results"]
    assert {row["kind"]: row["cohort"] for row in everything if row["kind"] in ("bind_policy", "host_lease")} == {
        "bind_policy": None, "host_lease": None,
    }  # fmt: skip


@pytest.mark.django_db
def test_pages_of_decisions_neither_skip_nor_repeat(api, run, played) -> None:
    rule(
        run,
        *(
            Logged(seq, 1.0, Ruling(RulingKind.GROUP_REFUSED, "no signal", "", 0, f"draw:{seq}"))
            for seq in (1, 1, 2, 3)
        ),
    )
    whole = [(row["type"], row["seq"], row["command"], row["target"]) for row in read(api, run, "decisions")["results"]]
    paged, path = [], "decisions?limit=3"
    while path:
        found = read(api, run, path)
        paged += [(row["type"], row["seq"], row["command"], row["target"]) for row in found["results"]]
        path = found["next"] and found["next"].split("/")[-1]
    assert paged == whole
    assert len(whole) == len(set(whole)) + 1, "two rulings of event 1 speak of one draw"


@pytest.mark.django_db
def test_a_wrong_question_is_refused_by_name(api, run) -> None:
    assert refused(api, run, "decisions?kind=guess") == "unknown_value"
    assert refused(api, run, "decisions?cursor=abc") == "not_a_cursor"
    assert refused(api, run, "decisions?cursor=WyItY29tbWFuZCwtc2VxLC1vcmQiLGZhbHNlLFsiYSIsMSwyXV0") == "not_a_cursor"
    assert refused(api, run, "decisions?limit=501") == "out_of_range"
    assert refused(api, run, "decisions?step=0") == "out_of_range"
    assert refused(api, run, "transitions?step=0") == "out_of_range"
    assert refused(api, run, "lag?steps=0") == "out_of_range"


@pytest.mark.django_db
def test_the_number_of_statements_does_not_follow_the_run(api, run, played) -> None:
    for path, most in (("cohorts", 11), ("lag", 15), ("store", 10), ("decisions", 9)):
        with at_most(most, path):
            read(api, run, path)


def groups(settled, groups=4, taken=None):
    return CohortGroups(0, 1.0, taken, {}, groups, settled, 0, 0, None)


def batches(cut=0, accumulated=0, applied=0, void=0):
    return CohortBatches(0, "solver", 8, cut, accumulated, applied, void, None, None)


@pytest.mark.parametrize(
    ("found", "own", "ruled", "ended", "expected", "waits"),
    [
        (groups(0), [], {}, False, "open", "4 of 4 episode groups"),
        (groups(1, taken=2.0), [batches(cut=1)], {}, False, "playing", "3 of 4 episode groups"),
        (groups(4, taken=2.0), [], {}, False, "settled", "its rows to be cut"),
        (groups(4), [batches(1, 2)], {}, False, "cut", "gradients of solver: 2 of 3 micro-batches"),
        (groups(4), [batches(0, 2)], {}, False, "cut", "the optimizer step of solver"),
        (groups(4), [batches(applied=2)], {}, False, "applied", ""),
        (groups(4), [], {"group_refused": 3, "group_dropped": 1}, False, "applied", "its rows to be cut"),
        (groups(3), [batches(applied=2)], {"cohort_settled": 1}, False, "applied", ""),
        (groups(3), [], {"cohort_settled": 1}, False, "settled", "its rows to be cut"),
        (groups(2), [batches(void=1)], {}, True, "abandoned", "2 of 4 episode groups"),
        (groups(4), [batches(void=1, applied=1)], {}, True, "applied", ""),
    ],
)
def test_a_cohort_is_in_one_state(found, own, ruled, ended, expected, waits) -> None:
    assert state_of(found, own, ruled, ended=ended) is CohortState(expected)
    assert waits_for(found, own, ruled) == waits
    assert set(CohortState) - cohorts.UNDER_WAY == {CohortState.APPLIED, CohortState.ABANDONED}


def test_a_cohort_with_redundancy_waits_for_enough_groups_and_not_for_all() -> None:
    said = "{} more of 10 episode groups, 8 are needed"
    assert waits_for(groups(0, 10), [], {}, 8) == said.format(8)
    assert waits_for(groups(7, 10), [], {"group_refused": 2}, 8) == said.format(3)
    assert waits_for(groups(8, 10), [], {}, 8) == said.format(1), "what settled is not handled yet"
    assert waits_for(groups(7, 8), [], {}, 8) == "1 of 8 episode groups"
