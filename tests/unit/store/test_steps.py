"""Micro-batches keep their members, versions form a chain, rows are applied once."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from flexmarl.contracts.commands import Accumulate
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.wire import TrainStats
from flexmarl.store.control import commands, engines, leases
from flexmarl.store.data import micro_batches, steps, tokenizers
from flexmarl.store.errors import LeaseLost, Refused, TokenLost
from tests.support.store_story import digest

pytestmark = pytest.mark.services


@pytest.fixture
def trained(story):
    """A trainer with version 0, four settled groups, two micro-batches cut and accumulated."""
    lease_id = story.trainer("t1")
    story.settle(0, 1, 2, 3)
    story.cut(0, 1, 0)
    story.cut(1, 3, 2)
    for no in (0, 1):
        story.accumulate(lease_id, no, "0:t1")
    return lease_id


def statuses(story):
    rows = story.conn.execute("SELECT no, status, version FROM store.micro_batch ORDER BY no").fetchall()
    return {no: (status, version) for no, status, version in rows}


def test_a_micro_batch_is_read_in_the_order_of_its_keys(story):
    story.settle(0, 1)
    story.cut(0, 1, 0)
    batch = micro_batches.read(story.conn, 1, "solver", 0)
    assert [(row.draw, row.member, *row.advantages) for row in batch.rows] == [
        (1, 0, -0.5), (1, 1, 0.5), (0, 0, -0.5), (0, 1, 0.5),
    ]  # fmt: skip
    first = batch.rows[0].arrays
    assert first.prompt_ids().tolist() == [1, 10, 0]
    assert first.response_ids().tolist() == [4, 5, 6]
    np.testing.assert_array_equal(first.response_logprobs(), np.float32([-0.5, -0.25, -0.125]))
    assert first.allowed_ids().tolist() == [4, 5, 6, 7]


def test_a_micro_batch_with_a_missing_sample_is_refused(story):
    story.settle(0)
    story.cut(0, 0, 5)
    with pytest.raises(Refused, match="2 of 4"):
        micro_batches.read(story.conn, 1, "solver", 0)


def test_a_step_applies_its_rows_and_makes_the_next_version(story, trained):
    story.step(trained, "0:t1", (0, 1), 1)
    assert statuses(story) == {0: ("applied", 1), 1: ("applied", 1)}
    assert micro_batches.read(story.conn, 1, "solver", 0).proximal == 0, "the cohort's first step began with version 0"
    newest = steps.newest_versions(story.conn, 1)["solver"]
    assert (newest.version, newest.parent, newest.digest, newest.state) == (1, 0, digest(1), "state-1")
    assert story.kinds()[-1] == "step_committed"


def test_a_trainer_that_commits_a_step_and_dies_leaves_one_version(story, trained):
    taken = story.take_step(trained, "0:t1", (0, 1), 1)
    story.lapse(taken.no)
    assert commands.take(story.conn, 1, taken.no, 30).takes == 2  # the first executor is thought dead
    with pytest.raises(TokenLost):
        steps.commit_step(story.conn, taken, story.step_of(trained, "0:t1", (0, 1), 1))
    story.lapse(taken.no)
    last = story.take(taken.no)
    steps.commit_step(story.conn, last, story.step_of(trained, "0:t1", (0, 1), 1))
    story.lapse(taken.no)
    assert commands.take(story.conn, 1, taken.no, 30) is None  # committed with the version: nobody repeats it
    # The trainer dies now: the next one restores what was committed, and the old accumulator is refused.
    story.conn.execute("UPDATE store.lease SET incarnation = 't2' WHERE id = %s", [trained])
    story.bind(trained, "t2", 1)
    again = story.take_step(trained, "0:t1", (0, 1), 1)
    with pytest.raises(LeaseLost):
        steps.commit_step(story.conn, again, story.step_of(trained, "0:t1", (0, 1), 1))
    again = story.take_step(trained, "1:t2", (0, 1), 2)
    with pytest.raises(Refused, match="0 of 2"):
        steps.commit_step(story.conn, again, story.step_of(trained, "1:t2", (0, 1), 2))
    assert story.count("policy_version") == 2
    assert story.kinds().count("step_committed") == 1


@pytest.mark.parametrize(
    ("accumulator", "numbers", "version", "code"),
    [
        ("0:t1", (0, 1, 2), 1, "accumulator_differs"),  # one was never accumulated
        ("7:t1", (0, 1), 1, "accumulator_differs"),  # another epoch of the accumulator
        ("0:t1", (0, 1), 2, "version_conflict"),  # its parent does not exist
        ("0:t1", (0, 1), 0, "version_conflict"),  # a number is never used again
    ],
)
def test_a_step_that_does_not_fit_changes_nothing(story, trained, accumulator, numbers, version, code):
    taken = story.take_step(trained, accumulator, numbers, version)
    with pytest.raises(Refused) as refused:
        steps.commit_step(story.conn, taken, story.step_of(trained, accumulator, numbers, version))
    assert refused.value.code == code
    assert statuses(story) == {0: ("accumulated", None), 1: ("accumulated", None)}
    assert story.count("policy_version") == 1


def test_an_applied_micro_batch_is_never_accumulated_again(story, trained):
    story.step(trained, "0:t1", (0, 1), 1)
    order = Accumulate(lease_id=trained, policy="solver", micro_batch=0, accumulator="1:t1", entropy_coef=0)
    taken = story.take(story.issue(order))
    with pytest.raises(Refused, match="applied"):
        micro_batches.accumulated(story.conn, taken, "solver", 0, accumulator="1:t1", stats=TrainStats())
    assert statuses(story)[0] == ("applied", 1)


def test_the_same_members_are_accumulated_again_after_a_loss(story, trained):
    story.conn.execute("UPDATE store.lease SET incarnation = 't2' WHERE id = %s", [trained])
    story.bind(trained, "t2", 0)
    for no in (0, 1):
        story.accumulate(trained, no, "0:t2")
    story.step(trained, "0:t2", (0, 1), 1)
    assert statuses(story) == {0: ("applied", 1), 1: ("applied", 1)}
    assert story.kinds().count("micro_batch_accumulated") == 4


def test_a_bind_of_another_digest_is_refused(story, trained):
    story.step(trained, "0:t1", (0, 1), 1)
    with pytest.raises(Refused, match="bound 0"):
        story.bind(trained, "t1", 0)
    assert tokenizers.load(story.conn, 1) == {"solver": b'{"a": 1}'}
    assert tokenizers.digest(story.conn, 1, "solver") == sha256(b'{"a": 1}').hexdigest()
    with pytest.raises(Refused, match="was bound with tokenizer") as refused, story.conn.transaction():
        tokenizers.keep(story.conn, 1, "solver", b'{"a": 2}', "")
    assert refused.value.code == "tokenizer_differs"
    assert tokenizers.load(story.conn, 1) == {"solver": b'{"a": 1}'}
    with pytest.raises(Refused, match="no version 9"):
        steps.version_of(story.conn, 1, "solver", 9)


def test_an_engine_holds_only_while_its_incarnation_serves(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    _, hosting = story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    served(story, lease_id, "e1", 0)
    [route] = engines.routes(story.conn, 1)
    assert (route.incarnation, route.holds["solver"].version) == ("e1", 0)
    leases.child_lost(story.conn, hosting, "e1", "killed")
    assert engines.routes(story.conn, 1) == []
    leases.child_ready(story.conn, hosting, "e2", "http://127.0.0.1:8", "secret")
    [route] = engines.routes(story.conn, 1)
    assert (route.incarnation, route.holds) == ("e2", {})
    with pytest.raises(LeaseLost):
        served(story, lease_id, "e1", 1)


def test_an_engine_is_known_by_the_two_versions_it_loaded_last(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    _, hosting = story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    for version in (0, 1, 1, 2):
        served(story, lease_id, "e1", version)
    [route] = engines.routes(story.conn, 1)
    assert (route.holds["solver"].version, route.former["solver"].version) == (2, 1)
    assert route.former["solver"].digest == digest(1)
    leases.child_lost(story.conn, hosting, "e1", "killed")
    leases.child_ready(story.conn, hosting, "e2", "http://127.0.0.1:8", "secret")
    served(story, lease_id, "e2", 2)
    [route] = engines.routes(story.conn, 1)
    assert (route.holds["solver"].version, route.former) == (2, {})


def test_an_engine_is_known_by_the_version_that_its_load_kept(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    for version, keeps, former in ((0, (), None), (1, (), 0), (2, (0,), 0), (3, (0, 2), 2), (4, (9,), 3)):
        served(story, lease_id, "e1", version, keeps)
        [route] = engines.routes(story.conn, 1)
        assert route.holds["solver"].version == version
        assert (route.former["solver"].version if route.former else None) == former
        assert former is None or route.former["solver"].digest == digest(former)


def served(story, lease_id, incarnation, version, keeps=()):
    from flexmarl.contracts.commands import LoadWeights

    order = LoadWeights(lease_id=lease_id, policy="solver", version=version, digest=digest(version), keeps=keeps)
    taken = story.take(story.issue(order))
    what = {"policy": "solver", "version": version, "digest": digest(version), "keeps": keeps}
    engines.served(story.conn, taken, lease_id, incarnation, **what)


def test_an_engine_is_named_no_more_for_what_it_forgets_before_it_has(story):
    from flexmarl.contracts.commands import UnloadPolicy

    lease_id = story.granted()[DeviceUse.ENGINE]
    story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    served(story, lease_id, "e1", 1)
    taken = story.take(story.issue(UnloadPolicy(lease_id=lease_id, policy="solver")))
    engines.leaves(story.conn, taken, lease_id, "solver")
    [route] = engines.routes(story.conn, 1)
    assert route.holds == {}
    served(story, lease_id, "e1", 1)  # a load that was committed behind it
    engines.unloaded(story.conn, taken, lease_id, "e1", "solver", 0.5)
    [route] = engines.routes(story.conn, 1)
    assert route.holds == {}
    row = story.conn.execute("SELECT body FROM store.inbox WHERE body ->> 'kind' = 'policy_unloaded'").fetchone()
    assert (row[0]["command_no"], row[0]["policy"], row[0]["seconds"]) == (taken.no, "solver", 0.5)
    served(story, lease_id, "e1", 2)
    with pytest.raises(TokenLost):
        engines.unloaded(story.conn, taken, lease_id, "e1", "solver", 0.5)
    engines.leaves(story.conn, taken, lease_id, "solver")
    [route] = engines.routes(story.conn, 1)
    assert route.holds["solver"].version == 2, "a command that is not held any more changes nothing"


def test_one_report_of_a_worker_waits_however_often_it_reports(story):
    from flexmarl.contracts.events import DemandReported, RequestedTurns
    from flexmarl.store.control import demand, inbox

    def report(worker, number):
        policies = {"solver": RequestedTurns(waiting=number, in_flight=1)}
        return demand.report(story.conn, 1, number, DemandReported(worker=worker, policies=policies))

    inbox.drop_events(story.conn, 1)
    assert [report("w1", 1), report("w1", 2), report("w10", 1), report("w1", 3)] == [True, False, True, False]
    assert len(inbox.take_events(story.conn, 1)) == 2
    assert report("w1", 4)


def test_steps_behind_the_last_durable_version_are_told_with_all_it_takes_to_redo_them(story, trained):
    story.settle(4, 5)
    story.cut(2, 4, 5)
    taken = story.take_step(trained, "0:t1", (0, 1), 1)
    steps.commit_step(story.conn, taken, replace(story.step_of(trained, "0:t1", (0, 1), 1), state=""))
    story.accumulate(trained, 2, "1:t1")
    taken = story.take_step(trained, "1:t1", (2,), 2)
    steps.commit_step(story.conn, taken, replace(story.step_of(trained, "1:t1", (2,), 2), state=""))
    base, behind = steps.steps_behind_state(story.conn, 1, "solver", 2)
    assert (base.version, base.digest) == (0, digest(0))
    assert base.state
    assert [(step.version, step.digest, sorted(step.micro_batches)) for step in behind] == [
        (1, digest(1), [0, 1]), (2, digest(2), [2]),
    ]  # fmt: skip
    assert {step.learning_rate for step in behind} == {story.step_of(trained, "0:t1", (0, 1), 1).learning_rate}
    assert all(isinstance(entropy, float) for step in behind for entropy in step.micro_batches.values())
    assert steps.steps_behind_state(story.conn, 1, "solver", 1)[1] == behind[:1]


def test_a_version_becomes_durable_once_and_stays_so(story, trained):
    taken = story.take_step(trained, "0:t1", (0, 1), 1)
    steps.commit_step(story.conn, taken, replace(story.step_of(trained, "0:t1", (0, 1), 1), state=""))
    story.settle(4)
    story.cut(2, 4)
    story.accumulate(trained, 2, "1:t1")
    taken = story.take_step(trained, "1:t1", (2,), 2)
    later = replace(story.step_of(trained, "1:t1", (2,), 2), state="", durable={1: "late-1", 0: "other"})
    first = steps.version_of(story.conn, 1, "solver", 0).state
    steps.commit_step(story.conn, taken, later)
    assert steps.version_of(story.conn, 1, "solver", 1).state == "late-1"
    assert steps.version_of(story.conn, 1, "solver", 0).state == first
    assert steps.steps_behind_state(story.conn, 1, "solver", 2)[0].version == 1
    # Whoever redid the steps has the training state of the newest version on disk, and says so.
    story.bind(trained, "t1", 2)
    assert steps.steps_behind_state(story.conn, 1, "solver", 2)[1] == []
