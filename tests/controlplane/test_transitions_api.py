"""The four events per policy of a played run, over REST."""

import pytest

from tests.controlplane.test_joint import SEATS, read, refused
from tests.support.played import play


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
    assert len(read(api, run, "transitions?limit=1")["results"]) == 1


@pytest.mark.django_db
def test_what_is_no_kind_or_limit_is_refused(api, run) -> None:
    assert refused(api, run, "transitions?kind=guess") == "unknown_value"
    assert refused(api, run, "transitions?limit=0") == "out_of_range"
