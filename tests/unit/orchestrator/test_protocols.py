"""Trainer protocols and publications: every pair completes, counts add up, and each does what its name says."""

import itertools

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started
from tests.unit.orchestrator.test_cohorts import draws_of, failed, kinds, quiet, settle
from tests.unit.orchestrator.test_random_orders import account

PROTOCOLS = {
    "micro_batch": {},
    "per_group": {"mechanisms__trainer_protocol": "per_group"},
    "batch": {"mechanisms__trainer_protocol": "batch"},
    "mini_batch": {
        "mechanisms__trainer_protocol": "mini_batch",
        "batch__mini_batches": 3,
        "batch__micro_batch_groups": 1,
    },
}
PUBLICATIONS = ("cohort", "wavefront", "delayed")


def spec_of(protocol, publication, **more):
    changes = PROTOCOLS[protocol] | {"mechanisms__publication": publication} | more
    parts = 3 if protocol == "mini_batch" else 1
    bound = parts - 1 + (parts if publication == "delayed" else 0)
    return make_spec(**changes, mechanisms__lag_policy__bound=bound)


@pytest.mark.parametrize(("protocol", "publication"), list(itertools.product(PROTOCOLS, PUBLICATIONS)))
def test_every_protocol_completes_under_every_publication_whatever_breaks(protocol, publication):
    for seed in range(6):
        faults = Faults(twice=0.2, child_death=0.01 * (seed % 3), uncommitted=0.03, refused=0.01, recall=0.01)
        cluster = started(spec_of(protocol, publication), seed=seed, faults=faults, round_trip=seed == 5).run()
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
        assert cluster.core.state.step == 4
        account(cluster)
        own = 3 if protocol == "mini_batch" else 1
        highest = own - 1 + (own if publication == "delayed" else 0)
        assert max(cluster.lags) <= highest
        assert not cluster.core.state.totals.rows_dropped
        if publication != "delayed":
            assert cluster.lags == set(range(own))


def test_a_wavefront_starts_on_first_turns_and_pins_what_is_to_come():
    cluster = quiet(mechanisms__publication="wavefront")
    for draw in range(6):
        settle(cluster, draw)
    cluster.run(until=lambda x: len(x.core.state.cohorts) == 2)
    head, following = cluster.core.state.cohorts
    assert head.policies["speaker"].stepped
    assert not head.policies["listener"].stepped
    assert all(pin.version == head.pins[name].version + 1 for name, pin in following.pins.items())
    assert following.pins["speaker"].digest
    assert not following.pins["listener"].digest
    cluster.run(until=lambda x: x.core.state.policies["listener"].version == following.pins["listener"].version)
    assert cluster.core.state.cohorts[-1].pins["listener"].digest


def test_a_wavefront_serves_old_and_new_side_by_side_while_an_evaluation_runs():
    cluster = started(make_spec(mechanisms__publication="wavefront"))
    cluster.run(until=lambda x: x.status is RunStatus.RUNNING)
    cluster.held_draws = set(cluster.core.state.evaluation.open)
    cluster.run(until=lambda x: x.core.state.numbers.cohort == 2)
    lease = next(iter(cluster.core.state.fleet.of_use(e.DeviceUse.ENGINE)))
    assert (lease.weights.held["speaker"], lease.weights.previous["speaker"]) == (1, 0)
    cluster.run(until=lambda x: x.core.state.policies["speaker"].version == 2)
    for _ in range(200):
        if not cluster.inbox and all(set(draws_of(n.command)) <= cluster.held_draws for n in cluster.open.values()):
            break
        cluster.happen()
    later = [x for x in cluster.commands("load_weights") if x.version > 1]
    assert later, "the version between makes room: no unsettled group is served by it"
    assert {x.keeps for x in later} == {(0,)}, "what the evaluation pins goes on being served"
    cluster.held_draws = set()
    assert cluster.run().status is RunStatus.COMPLETED


def test_delayed_publication_starts_the_next_cohort_when_the_last_is_settled_on_its_vector():
    cluster = quiet(mechanisms__publication="delayed", mechanisms__lag_policy__bound=1)
    for draw in range(6):
        decision = settle(cluster, draw)
    assert "play_groups" in kinds(decision)
    assert all(pin.version == 0 for pin in cluster.core.state.cohorts[1].pins.values())
    assert cluster.run().lags == {0, 1}


def test_mini_batches_step_while_the_cohort_plays_and_publish_once():
    cluster = quiet(mechanisms__trainer_protocol="mini_batch", batch__mini_batches=3, mechanisms__lag_policy__bound=2)
    settle(cluster, 0)
    settle(cluster, 1)
    cluster.held_draws = {2, 3, 4, 5}
    cluster.run(until=lambda x: x.core.state.policies["speaker"].version == 1)
    assert not cluster.core.state.cohort.policies["speaker"].stepped
    assert max(x.version for x in cluster.commands("load_weights")) == 0
    cluster.held_draws = set()
    cluster.run(until=lambda x: x.core.state.step == 1)
    assert cluster.core.state.policies["speaker"].version == 3
    cluster.run(until=lambda x: x.core.state.numbers.cohort == 2)
    assert {x.version for x in cluster.commands("load_weights")} == {0, 3}


def test_per_group_cuts_each_group_alone():
    cluster = quiet(mechanisms__trainer_protocol="per_group")
    assert kinds(settle(cluster, 3)).count("cut_micro_batch") == 2
    cluster.run()
    assert all(len({s.draw for s in x.samples}) == 1 for x in cluster.commands("cut_micro_batch"))
    assert {len(x.micro_batches) for x in cluster.commands("optimizer_step")} == {6}


def rows(count, score=1.0):
    """One turn of the speaker, `count` of the listener."""
    turns = [("speaker", 0), *(("listener", turn) for turn in range(count))]
    return lambda member, command=None: EpisodeOutcome(
        member=member,
        attempt=1,
        status=EpisodeStatus.FINISHED,
        scores={"speaker": score * member, "listener": score * member},
        team_score=score * member,
        samples=tuple(SampleRef(role=role, turn=turn, tokens=3) for role, turn in turns),
    )


def test_too_few_rows_are_carried_at_own_lag_zero_and_trained_once():
    cluster = started(make_spec(batch__min_rows=30, batch__max_carry=4), faults=Faults(child_death=0.01, twice=0.2))
    cluster.episode = rows(2)  # 18 rows of the speaker in a cohort, 36 of the listener
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert {p: s.version for p, s in cluster.core.state.policies.items()} == {"speaker": 2, "listener": 4}
    assert cluster.core.state.totals.samples_trained == len(cluster.trained) == 4 * (18 + 36)
    assert cluster.lags == {0}


def test_after_max_carry_a_policy_steps_with_what_it_has():
    cluster = started(make_spec(batch__min_rows=1000, batch__max_carry=1))
    cluster.episode = rows(2)
    cluster.run()
    assert {p: s.version for p, s in cluster.core.state.policies.items()} == {"speaker": 2, "listener": 2}


def test_nothing_is_carried_past_the_last_cohort_of_a_run():
    cluster = started(make_spec(batch__min_rows=1000, batch__max_carry=9))
    cluster.episode = rows(1)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert {p: s.version for p, s in cluster.core.state.policies.items()} == {"speaker": 1, "listener": 1}
    assert cluster.core.state.totals.samples_trained == len(cluster.trained) == 4 * 36


def test_a_policy_clock_drops_and_counts_overtaken_rows():
    cluster = started(make_spec(mechanisms__policy_clock=True, batch__min_rows=30), faults=Faults(twice=0.2))
    cluster.episode = rows(2)
    cluster.run()
    state = cluster.core.state
    assert cluster.status is RunStatus.COMPLETED
    assert state.policies["listener"].version == 4
    assert state.policies["speaker"].version == 2
    assert cluster.lags == {0}
    dropped = state.totals.rows_dropped.get("overtaken", 0)
    assert state.totals.samples_trained == len(cluster.trained)
    assert state.totals.samples_trained + dropped == 4 * (18 + 36)
    told = [r for d in cluster.decisions for r in d.rulings if r.cause == "overtaken"]
    assert sum(r.rows for r in told) == dropped


def test_a_policy_clock_steps_before_the_barrier_and_serves_after_it():
    cluster = quiet(mechanisms__policy_clock=True, batch__min_rows=10)
    cluster.episode = rows(2)
    for draw in range(4):
        settle(cluster, draw)
    cluster.held_draws = {4, 5}
    cluster.run(until=lambda x: x.core.state.policies["listener"].version == 1)
    assert cluster.core.state.cohort.open
    assert max(x.version for x in cluster.commands("load_weights")) == 0
    settle(cluster, 4)
    settle(cluster, 5)
    assert cluster.core.state.totals.rows_dropped["overtaken"] == 6 * 2 + 6


def test_failed_members_may_count_with_a_declared_score():
    cluster = quiet(batch__incomplete_group="score", batch__failed_score=-1.0, batch__micro_batch_groups=1)
    cluster.episode = rows(1)
    settle(cluster, 0, [cluster.episode(0), cluster.episode(1), failed(2)])
    cohort = cluster.core.state.cohort
    assert (cohort.groups.kept, cohort.groups.dropped) == (1, 0)
    cut = next(x for x in cluster.commands("cut_micro_batch") if x.ref.policy == "speaker")
    assert {s.member: s.advantages[0] for s in cut.samples} == pytest.approx({0: 0.0, 1: 1.0})


def test_rows_that_need_no_peer_survive_a_failed_member():
    cluster = quiet(algorithm__advantage__type="reinforce", batch__micro_batch_groups=1)
    cluster.episode = rows(1)
    settle(cluster, 0, [failed(0), failed(1), cluster.episode(2)])
    cut = next(x for x in cluster.commands("cut_micro_batch") if x.ref.policy == "speaker")
    assert [(s.member, s.advantages[0]) for s in cut.samples] == [(2, 2.0)]


def test_a_plug_in_that_needs_the_batch_compares_all_of_it():
    cluster = quiet(algorithm__advantage__type="reinforce_pp", mechanisms__trainer_protocol="batch")
    cluster.episode = rows(1)
    for draw in range(6):
        settle(cluster, draw)
    mine = [s for x in cluster.commands("cut_micro_batch") if x.ref.policy == "speaker" for s in x.samples]
    assert sum(s.advantages[0] for s in mine) == pytest.approx(0)
    assert sum(s.advantages[0] ** 2 for s in mine) / len(mine) == pytest.approx(1, rel=1e-4)


GAME = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}


@pytest.mark.parametrize(
    ("change", "where", "hint"),
    [
        ({"algorithm": {"advantage": {"type": "reinforce_pp"}}}, "/mechanisms/trainer_protocol", "Set batch"),
        (
            {"mechanisms": {"trainer_protocol": "mini_batch"}, "batch": {"mini_batches": 4}},
            "/mechanisms/lag_policy/bound",
            "Set 3",
        ),
        ({"mechanisms": {"publication": "delayed"}}, "/mechanisms/lag_policy/bound", "Set 1"),
        ({"mechanisms": {"policy_clock": True}}, "/batch/min_rows", "Set the rows"),
        (
            {"mechanisms": {"policy_clock": True, "publication": "wavefront"}, "batch": {"min_rows": 8}},
            "/mechanisms/publication/type",
            "Set cohort",
        ),
    ],
)
def test_what_cannot_work_together_is_refused_with_a_legal_value(change, where, hint):
    with pytest.raises(SpecProblems) as caught:
        resolve({**GAME, **change})
    assert any(p.pointer == where and p.hint.startswith(hint) for p in caught.value.problems), caught.value.problems
