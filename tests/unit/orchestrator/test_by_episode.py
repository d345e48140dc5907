"""Episodes that settle one by one: rows are trained while their group plays, every member counts once."""

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.asking import account, deliver_all, freeze, until
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started

ALONE = {"batch__settle": "episode", "algorithm__advantage": {"type": "reinforce"}}


def by_episode(**changes):
    spec = make_spec(**(ALONE | changes))
    assert not broken_rules(spec)
    return spec


def check(cluster, steps=4):
    state = cluster.core.state
    assert cluster.status is RunStatus.COMPLETED, state.lifecycle.reason_text
    assert state.step == steps
    account(cluster)
    told = {}
    for event in cluster.log:
        if isinstance(event[0], e.GroupSettled) and event[0].origin == "train":
            for episode in event[0].episodes:
                told.setdefault((event[0].draw, episode.member), episode)
    finished = sum(episode.status == "finished" for episode in told.values())
    assert state.totals.train_episodes.finished == finished
    rows = sum(len(episode.samples) for episode in told.values())
    assert state.totals.samples_trained == rows, "every row of a finished episode is trained"


@pytest.mark.parametrize("protocol", ["micro_batch", "per_group"])
@pytest.mark.parametrize("publication", ["cohort", "wavefront", "delayed"])
def test_every_member_counts_once_whatever_breaks(protocol, publication):
    bound = int(publication == "delayed")
    for seed in range(6):
        spec = by_episode(
            mechanisms__trainer_protocol=protocol,
            mechanisms__publication=publication,
            mechanisms__lag_policy__bound=bound,
        )
        faults = Faults(twice=0.3, child_death=0.01, uncommitted=0.05, refused=0.02, episode_failure=0.1)
        cluster = started(spec, seed=seed, faults=faults, round_trip=seed == 5).run()
        check(cluster)
        assert max(cluster.lags) <= bound


def test_rows_of_a_finished_episode_are_trained_before_their_group_is_complete():
    early = 0
    for seed in range(6):
        cluster = started(by_episode(batch__micro_batch_groups=1), seed=seed)
        cluster.run(until=lambda x: any(own.accumulated for c in x.core.state.cohorts for own in c.policies.values()))
        cohort = cluster.core.state.cohort
        early += len(cohort.open) == cohort.size
        check(cluster.run())
    assert early, "every first gradient waited for a complete group"


@pytest.mark.parametrize("seed", range(8))
def test_rests_and_retries_lose_no_member(seed):
    cluster = started(by_episode(), seed=seed, faults=Faults(twice=0.2, episode_failure=0.1))
    for step in (0, 1, 2):
        cluster.run(until=lambda x, step=step: x.core.state.step >= step and x.core.state.cohort is not None)
        cluster.run(until=lambda x: not x.core.state.cohorts or any(x.core.state.cohort.ended.values()))
        freeze(cluster)
        until(cluster, RunStatus.PAUSED)
        cluster.verb(Verb.RESUME)
        until(cluster, RunStatus.RUNNING)
    cluster.run(until=lambda x: any(c.ended for c in x.core.state.cohorts))
    cluster.tell(e.RunVerb(verb=Verb.PAUSE, mode=PauseMode.DRAIN))
    until(cluster, RunStatus.PAUSED)
    cluster.verb(Verb.RESUME)
    check(cluster.run())


def test_a_kill_between_two_members_counts_the_others_as_cancelled():
    cluster = started(by_episode(), seed=3)
    cluster.run(until=lambda x: any(len(told) == 1 for c in x.core.state.cohorts for told in c.ended.values()))
    cluster.verb(Verb.KILL)
    deliver_all(cluster)
    episodes = cluster.core.state.totals.train_episodes
    assert episodes.cancelled > 0
    account(cluster)


def test_a_group_of_which_nobody_finished_is_dropped_and_told():
    cluster = started(by_episode(budget__train_steps=1), seed=1, faults=Faults(episode_failure=0.75)).run()
    dropped = [r for d in cluster.decisions for r in d.rulings if r.kind == "group_dropped"]
    assert dropped
    assert all("none of 3 episodes finished" in ruling.reason for ruling in dropped)
    account(cluster)


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"algorithm__advantage": {"type": "grpo"}}, "/batch/settle", "needs_group"),
        ({"sampling__group_filter": "drop_zero_variance"}, "/batch/settle", "needs_group"),
        ({"sampling__keep_members": 2}, "/batch/settle", "needs_group"),
        ({"mechanisms__trainer_protocol": "batch"}, "/mechanisms/trainer_protocol", "not_with_settle_episode"),
        ({"mechanisms__ordered": True}, "/mechanisms/ordered", "not_with_settle_episode"),
        ({"batch__min_members": 2}, "/batch/min_members", "not_with_settle_episode"),
        (
            {"mechanisms__redundancy": {"type": "extra_groups", "extra": 1}},
            "/mechanisms/redundancy/type",
            "not_with_settle_episode",
        ),
        (
            {"mechanisms__lag_policy": {"bound": 1, "at_cut": "refresh"}},
            "/mechanisms/lag_policy/at_cut",
            "not_with_settle_episode",
        ),
    ],
)
def test_what_speaks_of_whole_groups_is_refused(changes, pointer, code):
    problems = broken_rules(make_spec(**(ALONE | changes)))
    assert (pointer, code) in [(problem.pointer, problem.code) for problem in problems]
