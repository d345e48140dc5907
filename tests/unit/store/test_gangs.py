"""Where ranks of a gang are told to meet: at the leader's rendezvous, as its child said when it became ready."""

import psycopg
import pytest

from flexmarl.contracts.commands import JoinGang
from flexmarl.contracts.events import DeviceUse, RankJoined
from flexmarl.store.control import leases
from flexmarl.store.data.steps import commit_answer
from flexmarl.store.errors import LeaseLost, Refused
from tests.support.store_story import Story
from workers.nodes.carrying_out import prepare
from workers.nodes.lanes import RETRYABLE
from workers.training.wire import JoinRequest, rendezvous_key

pytestmark = pytest.mark.services


def hosted(story: Story, incarnation: str, rendezvous: str) -> int:
    """Bring a trainer up; returns its lease."""
    lease_id = story.granted()[DeviceUse.TRAINER]
    _, hosting = story.hosted(lease_id, DeviceUse.TRAINER, incarnation)
    leases.child_ready(story.conn, hosting, incarnation, "http://127.0.0.1:9", "secret", rendezvous)
    return lease_id


def test_a_rank_is_sent_to_where_the_leader_of_now_is(story: Story, store_conn: psycopg.Connection) -> None:
    leader = hosted(story, "t1.1.1", "10.0.0.7:4000")
    order = JoinGang(lease_id=77, policy="solver", gang=(leader, 76, 77), meeting=4)
    request = prepare(store_conn, story.take(story.issue(order))).request
    assert request == JoinRequest("solver", 2, 3, 4, "10.0.0.7:4000", rendezvous_key("secret", "solver", 4))
    assert "secret" not in request.key


@pytest.mark.parametrize("gone", [True, False], ids=["its child is gone", "its child leads no gang"])
def test_without_a_leader_the_join_is_refused_and_may_be_tried_again(
    story: Story, store_conn: psycopg.Connection, gone: bool
) -> None:
    leader = hosted(story, "t1.1.1", "10.0.0.7:4000" if gone else "")
    if gone:
        store_conn.execute("UPDATE store.lease SET endpoint = '', incarnation = '' WHERE id = %s", [leader])
    order = JoinGang(lease_id=77, policy="solver", gang=(leader, 77), meeting=1)
    with pytest.raises(Refused) as refused:
        prepare(store_conn, story.take(story.issue(order)))
    assert refused.value.code == "gang_incomplete"
    assert refused.value.code in RETRYABLE


def test_a_rank_that_joined_is_told_once_and_only_by_who_serves_its_lease(
    story: Story, store_conn: psycopg.Connection
) -> None:
    lease_id = hosted(story, "t1.1.1", "10.0.0.7:4000")
    order = JoinGang(lease_id=lease_id, policy="solver", gang=(76, lease_id), meeting=3)
    taken = story.take(story.issue(order))
    joined = RankJoined(lease_id=lease_id, incarnation="t1.1.1", policy="solver", meeting=3)
    with pytest.raises(LeaseLost):
        commit_answer(store_conn, taken, lease_id, "t1.1.9", joined)
    commit_answer(store_conn, taken, lease_id, "t1.1.1", joined)
    rows = store_conn.execute(
        "SELECT body ->> 'policy', body ->> 'meeting' FROM store.inbox WHERE body ->> 'kind' = 'rank_joined'"
    ).fetchall()
    assert rows == [("solver", "3")]
    status = store_conn.execute("SELECT status FROM store.command WHERE no = %s", [taken.no]).fetchone()
    assert status == ("done",)
