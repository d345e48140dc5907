"""What a run exchanged: sums over its workers, and contents that are used once."""

import pytest

from flexmarl.store.telemetry.sharing_reports import SharingReport, claim, put_report, read_totals

pytestmark = pytest.mark.services


def test_a_content_is_used_once_in_a_run_by_whichever_worker_claims_it(story) -> None:
    assert sorted(claim(story.conn, 1, ["a", "b"])) == ["a", "b"]
    assert claim(story.conn, 1, ["b", "c"]) == ["c"]
    assert claim(story.conn, 2, ["b"]) == ["b"]


def test_reports_of_workers_are_summed_and_the_last_one_says_how_the_exchange_is(story) -> None:
    assert not read_totals(story.conn, 1).told
    put_report(story.conn, 1, "w1", SharingReport("connected", "", 5, 9, 2, {"repeated": 1}))
    put_report(story.conn, 1, "w2", SharingReport("connected", "", 1, 1, 1, {"repeated": 2, "too_long": 1}))
    put_report(story.conn, 1, "w1", SharingReport("unreachable", "ClientError", 7, 10, 3, {"repeated": 1}))
    found = read_totals(story.conn, 1)
    assert (found.state, found.reason, found.fresh) == ("unreachable", "ClientError", True)
    assert (found.published, found.received, found.used) == (8, 11, 4)
    assert found.refused == {"repeated": 3, "too_long": 1}
    story.conn.execute("UPDATE store.sharing SET at = at - interval '5 minutes'")
    assert not read_totals(story.conn, 1).fresh
