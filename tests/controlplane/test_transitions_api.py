"""The four events per policy of a played run, over REST."""

from datetime import UTC, datetime

import pytest

from flexmarl.contracts.events import DeviceUse
from flexmarl.controlplane.common.api.pagination import Cursor
from tests.controlplane.test_joint import read, refused
from tests.support.controlplane import SEATS
from tests.support.played import play
from tests.support.statements import at_most


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, "running", agents=SEATS)


@pytest.mark.django_db
def test_each_of_the_four_events_is_listed_with_time_and_owner(api, run) -> None:
    assert read(api, run, "transitions")["results"] == []
    play(run)
    found = read(api, run, "transitions")["results"]
    by_kind = {row["kind"]: row for row in found}
    assert {"ready", "backward", "step"} <= set(by_kind)
    assert all(row["owner"] and row["at"] and row["policy"] == "solver" for row in found)
    ready, backward, step = by_kind["ready"], by_kind["backward"], by_kind["step"]
    assert (ready["owner"], ready["event"], ready["micro_batch"]) == ("driver", None, backward["micro_batch"])
    assert ready["rows"] == step["rows"] > 0
    assert step["version"] == backward["version"] + 1
    assert backward["event"] < step["event"]
    only = read(api, run, "transitions?kind=step&policy=solver")["results"]
    assert [row["kind"] for row in only] == ["step"]
    assert read(api, run, "transitions?policy=other")["results"] == []
    assert read(api, run, "transitions?cohort=0")["results"] == [row for row in found if row["cohort"] == 0]
    assert read(api, run, "transitions?cohort=7")["results"] == []


def pages(api, run, query: str) -> list[list[dict]]:
    """Follow `next` to the end."""
    path, found = f"/api/v1/runs/{run.id}/transitions?{query}", []
    while path:
        answer = api.get(path).json()
        assert (answer["previous"], answer["count"]) == (None, None)
        found.append(answer["results"])
        path = answer["next"]
    return found


@pytest.mark.django_db
def test_pages_neither_skip_nor_repeat_also_while_rows_are_added(api, run) -> None:
    played = play(run)
    story, trainer = played.story, played.leases[DeviceUse.TRAINER]
    for version in (1, 2):
        story.settle(2 * version, 2 * version + 1, version=version)
        story.cut(version, 2 * version, 2 * version + 1)
        story.accumulate(trainer, version, f"{version}:t1.1.1")
        story.step(trainer, f"{version}:t1.1.1", (version,), version + 1)
    story.decide()
    # In the story the log lives in another age than the rows: one fact is moved between two cuts.
    story.conn.execute(
        "UPDATE store.event SET at = (SELECT max(cut_at) - (max(cut_at) - min(cut_at)) / 2 FROM store.micro_batch) "
        "WHERE run_id = %s AND seq = (SELECT max(seq) FROM store.event WHERE run_id = %s AND kind = 'step_committed')",
        [run.no, run.no],
    )
    whole = read(api, run, "transitions")["results"]
    assert [row["at"] for row in whole] == sorted((row["at"] for row in whole), reverse=True)
    assert {row["kind"] for row in whole} >= {"ready", "backward", "step"}
    for limit in (1, 2, 3):
        found = pages(api, run, f"limit={limit}")
        assert [row for page in found for row in page] == whole
        assert {len(page) for page in found[:-1]} == {limit}
    assert [row for page in pages(api, run, "limit=1&kind=step") for row in page] == [
        row for row in whole if row["kind"] == "step"
    ]
    assert [row for page in pages(api, run, "limit=2&cohort=0") for row in page] == [
        row for row in whole if row["cohort"] == 0
    ]
    assert [row["kind"] for row in whole].index("step") not in (0, len(whole) - 1), "facts and cuts are mixed"
    first = api.get(f"/api/v1/runs/{run.id}/transitions?limit=2").json()
    story.settle(6, 7)
    story.cut(3, 6, 7)
    rest = api.get(first["next"].replace("limit=2", "limit=500")).json()["results"]
    assert first["results"] + rest == whole


@pytest.mark.django_db
def test_a_page_takes_few_statements_whatever_it_lists(api, run) -> None:
    play(run)
    with at_most(9):
        read(api, run, "transitions")


@pytest.mark.django_db
def test_what_is_no_kind_limit_or_cursor_is_refused(api, run) -> None:
    assert refused(api, run, "transitions?kind=guess") == "unknown_value"
    assert refused(api, run, "transitions?limit=0") == "out_of_range"
    assert refused(api, run, "transitions?limit=501") == "out_of_range"
    assert refused(api, run, "transitions?cohort=last") == "wrong_type"
    assert refused(api, run, "transitions?cursor=nonsense") == "not_a_cursor"
    decisions = Cursor("-command,-seq,-ord", False, [1, 1, 1]).encode()
    assert refused(api, run, f"transitions?cursor={decisions}") == "other_ordering"
    for values in (["a", 1, "p", 0], [1, "2026-01-01", 3, 0], [-1, datetime(2026, 1, 1, tzinfo=UTC), "p", 0]):
        wrong = Cursor("-seq,-cut_at,-policy,-no", False, values).encode()
        assert refused(api, run, f"transitions?cursor={wrong}") == "not_a_cursor"
