"""The cohort's rules one by one: pins, barriers, cuts, steps, publication, evaluation."""

from collections import Counter

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.contracts.wire import EVALUATION_DRAWS, EpisodeOutcome, EpisodeStatus, Origin, SampleRef, TrainStats
from flexmarl.orchestrator.state.snapshots import decode
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec, running, started


def kinds(decision):
    return [n.command.kind for n in decision.commands]


def settle(cluster, draw, episodes=None):
    """Settle one open group by hand; returns the decision."""
    number, numbered = next((n, x) for n, x in cluster.open.items() if draw in draws_of(x.command))
    group = next(g for g in numbered.command.groups if g.draw == draw)
    event = cluster.settle(number, numbered.command, group)
    if episodes is not None:
        event = event.model_copy(update={"episodes": tuple(episodes)})
    cluster.groups[draw] = numbered.command
    return cluster.tell(event)


def draws_of(command):
    return [g.draw for g in getattr(command, "groups", ())]


def quiet(**changes):
    """A run at its first cohort, without an evaluation in the way."""
    cluster = running(make_spec(**changes))
    while cluster.core.state.evaluation is not None:
        settle(cluster, next(iter(cluster.core.state.evaluation.open)))
    return cluster


def failed(member):
    return EpisodeOutcome(member=member, attempt=3, status=EpisodeStatus.FAILED, reason="environment: step: boom")


def test_a_cohort_is_split_into_rollout_commands_under_one_vector():
    cluster = quiet()
    train = [x for x in cluster.commands("play_groups") if x.origin is Origin.TRAIN]
    assert [draws_of(x) for x in train] == [[0, 1], [2, 3], [4, 5]]
    assert len({tuple(sorted(x.pins.items(), key=str)) for x in train}) == 1
    assert all(not x.greedy and x.cohort == 0 for x in train)
    assert cluster.core.state.totals.train_episodes.proposed == 18


def test_streaming_cuts_each_full_slice_while_the_rest_plays():
    cluster = quiet()
    assert kinds(settle(cluster, 4)) == []
    assert kinds(settle(cluster, 1)) == ["cut_micro_batch", "cut_micro_batch", "accumulate", "accumulate"]
    cut = cluster.commands("cut_micro_batch")[0]
    assert sorted({s.draw for s in cut.samples}) == [1, 4]
    assert cluster.core.state.cohort.open


def test_batch_protocol_cuts_nothing_before_the_cohort_is_settled():
    cluster = quiet(mechanisms__trainer_protocol="batch")
    assert all(kinds(settle(cluster, draw)) == [] for draw in (3, 0, 5, 1, 2))
    assert kinds(settle(cluster, 4)).count("cut_micro_batch") == 6


def test_ordered_slices_follow_draw_numbers_and_one_accumulates_at_a_time():
    cluster = quiet(mechanisms__ordered=True)
    assert kinds(settle(cluster, 2)) == kinds(settle(cluster, 3)) == []
    settle(cluster, 1)
    assert kinds(settle(cluster, 0)).count("cut_micro_batch") == 4
    mine = [x for x in cluster.commands("cut_micro_batch") if x.ref.policy == "speaker"]
    assert [sorted({s.draw for s in x.samples}) for x in mine] == [[0, 1], [2, 3]]
    assert [x.micro_batch for x in cluster.commands("accumulate") if x.policy == "speaker"] == [0]


def test_equal_outcomes_in_any_order_of_arrival_cut_the_same_in_ordered_runs():
    def cuts(order, protocol):
        cluster = quiet(mechanisms__ordered=True, mechanisms__trainer_protocol=protocol)
        for draw in order:
            episodes = [outcome(draw, member) for member in range(3)]
            settle(cluster, draw, episodes)
        return [(x.ref, x.samples) for x in cluster.commands("cut_micro_batch")]

    def outcome(draw, member):
        cluster = FakeCluster(make_spec(), seed=draw * 10 + member)
        return cluster.episode(member)

    reference = sorted(map(str, cuts([0, 1, 2, 3, 4, 5], "micro_batch")))
    assert sorted(map(str, cuts([5, 3, 1, 4, 2, 0], "micro_batch"))) == reference
    assert sorted(map(str, cuts([2, 0, 5, 1, 4, 3], "batch"))) == reference


def test_a_step_waits_for_every_group_and_names_exactly_the_cut_micro_batches():
    cluster = quiet()
    for draw in range(5):
        settle(cluster, draw)
    cluster.held_draws = {5}
    cluster.run(until=lambda x: not any(n.command.kind == "accumulate" for n in x.open.values()) and not x.inbox)
    assert "optimizer_step" not in cluster.kinds()
    settle(cluster, 5)
    cluster.run(until=lambda x: x.kinds().count("optimizer_step") == 2)
    for step in cluster.commands("optimizer_step"):
        assert step.micro_batches == (0, 1, 2)
        assert (step.next_version, step.step, step.accumulator.partition(":")[0]) == (1, 0, "0")


def test_the_next_cohort_leaves_in_the_decision_of_the_last_weights_served():
    cluster = quiet().run(until=lambda x: x.core.state.numbers.cohort == 2)
    event, decision = cluster.log[-1][0], cluster.decisions[-1]
    assert isinstance(event, e.WeightsServed)
    assert [n.command.cohort for n in decision.commands if n.command.kind == "play_groups"] == [1, 1, 1]
    pins = decision.commands[0].command.pins
    assert {name: pin.version for name, pin in pins.items()} == {"speaker": 1, "listener": 1}


def test_newer_weights_wait_for_an_evaluation_that_pins_the_old_ones():
    cluster = running()
    playing = cluster.core.state.evaluation.open
    cluster.held_draws = set(playing)
    cluster.run(until=lambda x: x.core.state.step == 1)
    assert max(x.version for x in cluster.commands("load_weights")) == 0
    for draw in list(playing):
        settle(cluster, draw)
    assert max(x.version for x in cluster.commands("load_weights")) == 1


def test_evaluation_is_greedy_on_its_own_draws_and_counted_apart():
    cluster = started().run()
    evaluations = [x for x in cluster.commands("play_groups") if x.origin is Origin.EVAL]
    assert [x.cohort for x in evaluations] == [0, 2, 4]
    assert all(x.greedy and d >= EVALUATION_DRAWS for x in evaluations for d in draws_of(x))
    seeds = [[g.task_seed for g in x.groups] for x in evaluations]
    assert seeds[0] == seeds[1] == seeds[2]
    assert cluster.core.state.totals.eval_episodes.finished == 15
    assert cluster.core.state.totals.train_episodes.finished == 72
    assert {step for name, _, _, step in cluster.metrics if name == "eval/solved"} == {0, 2, 4}


def test_best_is_the_best_evaluated_vector_and_last_the_last():
    cluster = started(seed=4).run()
    curve = {step: v for (name, _, _, step), v in cluster.metrics.items() if name == "eval/solved"}
    score = {step: v for (name, _, _, step), v in cluster.metrics.items() if name == "eval/team_score"}
    best = max(curve, key=lambda step: (curve[step], score[step], -step))
    written = {label: (step, versions) for label, step, versions in cluster.checkpoints}
    assert written["best"] == (best, {"speaker": best, "listener": best})
    assert [s for label, s, _ in cluster.checkpoints if label == "last"] == [3, 4]


def test_a_group_below_its_needed_members_is_dropped_and_counted():
    cluster = quiet()
    episodes = [cluster.episode(0), cluster.episode(1), failed(2)]
    settle(cluster, 0, episodes)
    cohort, counters = cluster.core.state.cohort, cluster.core.state.totals.train_episodes
    assert (cohort.groups.dropped, cohort.groups.kept, counters.failed, counters.finished) == (1, 0, 1, 2)
    assert "boom" in cluster.notes[-1].text
    assert cluster.core.state.totals.samples_recorded > 0


def test_a_group_with_enough_members_is_kept_with_the_statistics_of_those():
    cluster = quiet(batch__min_members=2, batch__micro_batch_groups=1)
    episodes = [cluster.episode(0), failed(1), cluster.episode(2)]
    settle(cluster, 0, episodes)
    cut = cluster.commands("cut_micro_batch")[0]
    assert {s.member for s in cut.samples} == {0, 2}
    assert sum({s.member: s.advantages[0] for s in cut.samples}.values()) == pytest.approx(0)


def test_members_nobody_reported_and_scores_that_are_no_numbers_count_as_failed():
    cluster = quiet(batch__min_members=2)
    bad = cluster.episode(1).model_copy(update={"team_score": float("nan")})
    settle(cluster, 0, [cluster.episode(0), bad])
    assert cluster.core.state.totals.train_episodes.failed == 2


def test_a_run_that_loses_all_episodes_twice_ends_in_words():
    cluster = started(faults=Faults(episode_failure=1.0)).run()
    assert (cluster.status, cluster.core.state.lifecycle.reason) == (RunStatus.FAILED, RunReason.EPISODES_FAILED)
    said = cluster.core.state.lifecycle.reason_text
    assert said.startswith("the last episode failed with environment: step; "), "the cause comes first"
    assert "Trajectories" in said
    assert "min_members" in said
    assert cluster.core.state.totals.train_episodes.failed == 36


def test_a_policy_without_rows_takes_a_null_step_and_keeps_its_version():
    cluster = started(make_spec(sampling__group_filter="drop_zero_variance"))
    cluster.episode = lambda member, command=None: EpisodeOutcome(
        member=member, attempt=1, status=EpisodeStatus.FINISHED, team_score=1.0, solved=True
    )
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert cluster.core.state.step == 4
    assert cluster.core.state.policies["speaker"].version == 0
    assert "optimizer_step" not in cluster.kinds()
    assert cluster.metrics["groups/easy", "", "share", 1] == 1.0


def test_frozen_seats_are_recorded_and_shared_policies_train_all_their_seats():
    frozen = started(make_spec(agents={"speaker": {"trainable": False}, "listener": {}})).run()
    assert {key[3] for key in frozen.trained} == {"listener"}
    assert frozen.core.state.policies["speaker"].version == 0
    assert frozen.core.state.totals.samples_recorded > 0
    shared = started(make_spec(agents={r: {"policy": "both"} for r in ("speaker", "listener")})).run()
    assert {key[3] for key in shared.trained} == {"speaker", "listener"}
    assert shared.core.state.policies["both"].version == 4


def test_a_late_micro_batch_of_another_accumulator_is_ignored():
    cluster = quiet()
    settle(cluster, 0)
    settle(cluster, 1)
    before = decode(cluster.core.snapshot())
    stale = e.MicroBatchAccumulated(
        policy="speaker", micro_batch=0, accumulator="0:another", stats=TrainStats(rows=1, tokens=3, z=3.0)
    )
    assert kinds(cluster.tell(stale)) == []
    assert cluster.core.state.cohort.policies["speaker"].accumulated == 0
    before.now = cluster.core.state.now
    assert before == cluster.core.state


def test_groups_of_another_epoch_are_ignored():
    cluster = quiet()
    event = cluster.settle(1, cluster.commands("play_groups")[0], cluster.commands("play_groups")[0].groups[0])
    assert kinds(cluster.tell(event.model_copy(update={"epoch": 7}))) == []
    assert 0 in cluster.core.state.cohort.open


def test_metrics_of_a_step():
    cluster = started().run()
    names = {(name, agent) for name, agent, _, step in cluster.metrics if step == 2}
    team = {"reward/team", "solved", "time/step", "time/rollout", "time/wait_samples", "throughput/tokens"}
    team |= {"throughput/samples", "episodes/failed", "groups/useful", "groups/easy", "groups/hard", "fact/dishes"}
    own = {"train/loss", "train/entropy", "train/grad_norm", "train/kl_engine", "train/logprob_gap"}
    own |= {"train/learning_rate", "train/entropy_coef", "staleness/own_max", "reward/agent", "length/response"}
    assert {(name, "") for name in team} <= names
    assert {(name, role) for name in own for role in ("speaker", "listener")} <= names
    assert all(value == 0 for (name, *_), value in cluster.metrics.items() if name == "staleness/own_max")
    assert cluster.metrics["length/response", "speaker", "mean", 1] == 3.0
    shares = [cluster.metrics[f"groups/{s}", "", "share", 1] for s in ("useful", "easy", "hard")]
    assert sum(shares) == pytest.approx(1)


def test_rates_of_roles_add_up_and_versions_rise_with_steps():
    cluster = started().run()
    for name in ("throughput/tokens", "throughput/samples"):
        own = sum(cluster.metrics[name, role, "mean", 2] for role in ("speaker", "listener"))
        assert own == pytest.approx(cluster.metrics[name, "", "mean", 2])
        assert own > 0
    for policy in ("speaker", "listener"):
        assert [cluster.metrics["policy/version", policy, "last", step] for step in (1, 2)] == [1, 2]


def test_progress_tells_what_a_page_shows():
    cluster = quiet()
    settle(cluster, 0)
    settle(cluster, 1)
    view = cluster.core.progress()
    assert (view.step, view.max_steps, view.cohort_groups_settled, view.cohort_groups) == (0, 4, 2, 6)
    assert view.waiting_for == "4 of 6 episode groups"
    assert {m.policy: (m.cut, m.expected, m.state) for m in view.micro_batches} == {
        "speaker": (1, 3, "accumulating"),
        "listener": (1, 3, "accumulating"),
    }
    cluster.run()
    done = cluster.core.progress()
    assert (done.step, done.eval_step, done.waiting_for) == (4, 4, "")
    assert done.agents["speaker"].version == 4
    assert done.samples_trained == len(cluster.trained)
    assert done.step_seconds > 0


def test_a_cut_row_counts_once_whatever_the_average_of_the_loss():
    """Its coefficient is the trainer's alone: given here as well, it would count twice."""
    cluster = quiet(algorithm__loss__aggregation="seq_mean_token_mean")
    decisions = [settle(cluster, 0), settle(cluster, 1)]
    cuts = [n.command for found in decisions for n in found.commands if n.command.kind == "cut_micro_batch"]
    assert any(sample for cut in cuts for sample in cut.samples)
    assert {sample.weight for cut in cuts for sample in cut.samples} == {1.0}


def test_members_that_are_not_kept_are_recorded_and_the_others_compared():
    spec = make_spec(batch__episodes_per_task=3, sampling__keep_members=2)
    cluster = running(spec)
    while cluster.core.state.evaluation is not None:
        settle(cluster, next(iter(cluster.core.state.evaluation.open)))
    scores = (1.0, 0.6, 0.0)
    group = [
        cluster.episode(member).model_copy(update={"team_score": s, "scores": {}}) for member, s in enumerate(scores)
    ]
    cuts = []
    for draw in (0, 1):
        decision = settle(cluster, draw, group)
        cuts += [n.command for n in decision.commands if n.command.kind == "cut_micro_batch"]
    assert {(s.member, s.advantages[0]) for cut in cuts for s in cut.samples} == {(0, 0.5), (2, -0.5)}
    assert cluster.core.state.totals.samples_recorded > 0
    left = [one for one in decision.rulings if one.kind is RulingKind.ROWS_DROPPED]
    own = Counter(cluster.core.plan.policy_of[sample.role] for sample in group[1].samples)
    assert {(one.policy, one.cause, one.target, one.rows) for one in left} == {
        (policy, "not_kept", "draw:1", rows) for policy, rows in own.items()
    }


def test_members_of_pairs_keep_the_advantages_of_the_whole_group():
    """Shuffle-R1's example: of 1, 1 and six times 0 with half of the pairs, A = 1.732 and -0.577, not 1 and -1.

    The paper's sample deviation gives 1.620 and -0.540, the population's, as everywhere here, the square root of 8 / 7
    times as much.
    """
    spec = make_spec(
        batch__episodes_per_task=8, sampling__keep_members=4, sampling__keep_rule="pairs",
        algorithm__advantage={"divide_by_std": True},
    )  # fmt: skip
    cluster = running(spec)
    while cluster.core.state.evaluation is not None:
        settle(cluster, next(iter(cluster.core.state.evaluation.open)))
    group = [
        cluster.episode(member).model_copy(update={"team_score": float(member in (2, 5)), "scores": {}})
        for member in range(8)
    ]
    cuts = []
    for draw in (0, 1):
        decision = settle(cluster, draw, group)
        cuts += [n.command for n in decision.commands if n.command.kind == "cut_micro_batch"]
    given = {s.member: s.advantages[0] for cut in cuts for s in cut.samples}
    assert given == {
        2: pytest.approx(1.620185 * (8 / 7) ** 0.5, rel=1e-5), 5: pytest.approx(1.732051, rel=1e-5),
        6: pytest.approx(-0.540062 * (8 / 7) ** 0.5, rel=1e-5), 7: pytest.approx(-0.577350, rel=1e-5),
    }  # fmt: skip
    assert cluster.core.state.cohort.groups.members_kept == 8
    assert cluster.core.state.cohort.groups.members == 16


@pytest.mark.parametrize("rule", [{"keep_members": 2}, {"keep_members": 2, "keep_rule": "pairs"}], ids=str)
def test_a_whole_run_keeps_its_books_with_kept_members_and_shaped_rewards(rule: dict):
    shaping = {"type": "overlong", "buffer_tokens": 1}
    spec = make_spec(batch__episodes_per_task=4, sampling=rule, algorithm__shaping=shaping)
    cluster = started(spec).run()
    assert cluster.status is RunStatus.COMPLETED
    assert cluster.metrics["groups/members_kept", "", "share", 1] == 0.5


def test_filters_judge_by_rewards_before_shaping():
    """All members did equally: that some spoke longer does not make their group useful."""
    cluster = quiet(sampling__group_filter="drop_zero_variance", algorithm__shaping={"type": "overlong"})
    members = cluster.spec.batch.episodes_per_task
    equal = [cluster.episode(m).model_copy(update={"team_score": 0.5, "scores": {}}) for m in range(members)]
    limit = cluster.core.plan.settlement.reply_limits["speaker"]
    longest = SampleRef(role="speaker", turn=0, tokens=limit, reward=0.5)
    equal[0] = equal[0].model_copy(update={"samples": (longest,)})
    settle(cluster, 0, equal)
    assert cluster.core.state.cohort.groups.refused == 1
