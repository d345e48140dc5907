"""The advisor on rows whose answer is known, on both sides of each threshold."""

import re
from pathlib import Path

import pytest

from flexmarl.contracts.decisions import Metric
from flexmarl.controlplane.common.store import StoreConnection, store_connection
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.advisor import advice
from flexmarl.controlplane.telemetry.advisor.limits import LITTLE
from flexmarl.controlplane.telemetry.advisor.rules import (
    RULES,
    THRESHOLDS,
    AdviceVerdict,
    Facts,
    Severity,
    advise,
    verdict_of,
)
from flexmarl.controlplane.telemetry.timeline.bubble import Cause
from flexmarl.store.control.decisions import _write_metrics
from flexmarl.store.reads.advisor_inputs import OpenWork, SeriesEnds

NOW = 10_000.0


def ends(name, values, agent="", stat="mean"):
    """A series given oldest first."""
    row = SeriesEnds(1, name, agent, stat, tuple(values[:20]), tuple(reversed(values[-20:])), len(values))
    return {(name, agent, stat): row}


def work(kind, age, policy="", origin=""):
    return OpenWork(1, kind, policy, origin, 1, NOW - age)


def found(status="running", last_event=NOW, **facts):
    base = {"status": status, "now": NOW, "status_since": 0.0, "last_event": last_event}
    return advise(Facts(**{**base, **facts}))


def rules(advisories):
    return {(one.rule, one.severity) for one in advisories}


STEPS = ends("time/step", [10.0] * 30) | ends("time/rollout", [6.0] * 30)


@pytest.mark.parametrize(
    ("kind", "age", "expected"),
    [
        ("play_groups", 23.9, None),
        ("play_groups", 24.1, Severity.WATCH),
        ("play_groups", 47.9, Severity.WATCH),
        ("play_groups", 48.1, Severity.ALARM),
        ("accumulate", 39.9, None),
        ("accumulate", 40.1, Severity.WATCH),
        ("accumulate", 80.1, Severity.ALARM),
    ],
)
def test_an_open_phase_is_compared_with_its_own_median(kind, age, expected) -> None:
    advisories = found(series=STEPS, work=[work(kind, age, "solver")], waiting_for="3 of 16 episode groups")
    assert rules(advisories) == (set() if expected is None else {("stalled", expected)})
    if expected is not None:
        assert "solver" in advisories[0].text
        assert "3 of 16 episode groups" in advisories[0].text
        assert advisories[0].evidence["since"] == NOW - age


def test_short_steps_do_not_stall_within_seconds() -> None:
    quick = ends("time/step", [0.5] * 30) | ends("time/rollout", [0.3] * 30)
    assert found(series=quick, work=[work("play_groups", 14.9)]) == []
    assert rules(found(series=quick, work=[work("play_groups", 15.1)])) == {("stalled", Severity.WATCH)}
    assert rules(found(series=quick, work=[work("play_groups", 30.1)])) == {("stalled", Severity.ALARM)}


def test_the_first_step_stalls_after_ten_minutes_and_silence_counts() -> None:
    assert found(work=[work("play_groups", 599)]) == []
    assert verdict_of(found(work=[work("play_groups", 601)])) is AdviceVerdict.STALLED
    [silent] = found(series=STEPS, last_event=NOW - 81)
    assert silent.severity is Severity.ALARM
    assert "No command has been issued" in silent.text


def test_a_run_that_does_not_work_gets_no_advice() -> None:
    for status in ("draft", "queued", "paused", "failed", "completed"):
        assert found(status, series=STEPS, work=[work("play_groups", 900)]) == []


@pytest.mark.parametrize(("lag", "bound", "fires"), [(0, 0, False), (1, 0, True), (2, 2, False), (3, 2, True)])
def test_any_sample_beyond_the_bound_is_an_alarm(lag, bound, fires) -> None:
    rows = found(series=ends("staleness/own_max", [0, lag, 0], "solver", "max"), lag_bound=bound)
    assert rules(rows) == ({("staleness", Severity.ALARM)} if fires else set())


def test_mismatch_above_its_bound_or_growing() -> None:
    def kl(values):
        return rules(found(series=ends("train/kl_engine", values, "solver")))

    assert kl([0.001] * 40) == set()
    assert kl([0.049] * 40) == set()
    assert kl([0.051] * 40) == {("mismatch", Severity.ALARM)}
    assert kl([0.0011] * 20 + [0.0054] * 20) == set(), "not five times"
    assert kl([0.0011] * 20 + [0.0056] * 20) == {("mismatch", Severity.WATCH)}
    assert kl([0.0001] * 20 + [0.004] * 20) == set(), "grown and still tiny"
    assert kl([0.0011] * 5 + [0.0056] * 24) == set(), "too few steps"


@pytest.mark.parametrize(
    ("failed", "expected"), [(5, None), (6, Severity.WATCH), (20, Severity.WATCH), (21, Severity.ALARM)]
)
def test_failed_episodes(failed, expected) -> None:
    rows = found(series=ends("episodes/failed", [0, failed], stat="sum"), episodes_per_step=50)
    assert rules(rows) == (set() if expected is None else {("failed_episodes", expected)})


def test_entropy_is_compared_with_its_first_twenty_steps() -> None:
    def entropy(values):
        return found(series=ends("train/entropy", values, "verifier"))

    assert entropy([2.0] * 25 + [0.51] * 5) == []
    [collapsed] = entropy([2.0] * 25 + [0.49] * 5)
    assert (collapsed.rule, collapsed.severity, collapsed.agent) == ("entropy_collapse", Severity.WATCH, "verifier")
    assert (
        collapsed.text
        == "Verifier entropy fell to 24 % of its first-20-step median while the team's reward does not rise."
    )
    assert entropy([2.0] * 15 + [0.1] * 9) == [], "too few steps"


def test_a_team_that_learns_or_has_learned_may_be_sure_of_itself() -> None:
    def sure(rewards, optimum=2.0):
        series = ends("train/entropy", [2.0] * 25 + [0.1] * 5, "verifier") | ends("reward/team", rewards)
        return rules(found(series=series, optimum=optimum))

    fires = {("entropy_collapse", Severity.WATCH)}
    assert sure([1.0] * 30) == fires
    assert sure([1.81] * 30) == set(), "solved"
    assert sure([1.79] * 30) == fires
    assert sure([1.0] * 20 + [1.041] * 10) == set(), "still rising"
    assert sure([1.0] * 20 + [1.039] * 10) == fires
    assert sure([1.81] * 30, optimum=0.0) == fires, "nobody knows what solved means"


def test_a_team_that_solves_its_evaluations_has_converged_whatever_it_tries_in_training() -> None:
    def sure(evaluated, optimum=1.0):
        series = ends("train/entropy", [2.0] * 25 + [0.1] * 5, "listener") | ends("reward/team", [0.8] * 30)
        return rules(found(series=series | ends("eval/solved", evaluated), optimum=optimum))

    fires = {("entropy_collapse", Severity.WATCH)}
    assert sure([0.2, 0.9]) == set(), "solved"
    assert sure([0.2, 0.9], optimum=0.0) == set(), "solved needs no known optimum"
    assert sure([0.89] * 6) == fires, "the same and not solved: nobody tries anything else any more"
    assert sure([0.91, 0.91, 0.91, 0.4, 0.4, 0.4]) == fires, "it had solved them once"
    assert sure([0.3, 0.5, 0.5, 0.521]) == set(), "still learning"
    assert sure([0.3, 0.5, 0.5, 0.519]) == fires
    assert sure([0.3, 0.5, 0.5, 0.53, 0.53]) == set()
    assert sure([0.3, 0.5, 0.5, 0.53, 0.53, 0.53]) == fires, "it had its time"
    assert sure([]) == fires


def test_dead_groups() -> None:
    def dead(share, steps=5):
        return rules(found(series=ends("groups/useful", [1 - share] * steps, stat="share")))

    assert dead(0.49) == set()
    assert dead(0.5) == {("dead_groups", Severity.WATCH)}
    assert dead(0.9, steps=4) == set()
    shared = ends("groups/useful", [0.1] * 9, stat="share")
    assert rules(found(series=shared | ends("reward/team", [0.89] * 9), optimum=1.0)) == {
        ("dead_groups", Severity.WATCH)
    }
    assert found(series=shared | ends("reward/team", [0.91] * 9), optimum=1.0) == [], "solved: no group is better"
    rewards = ends("reward/team", [0.5] * 20 + [0.53] * 10)
    assert found(series=shared | rewards, optimum=1.0) == [], "it learns all the same"


def test_truncation() -> None:
    assert found(truncated={"solver": (24, 100)}) == []
    assert rules(found(truncated={"solver": (25, 100)})) == {("truncation", Severity.WATCH)}
    assert found(truncated={"solver": (31, 31)}) == [], "too few samples"
    both = {"solver": (50, 100), "planner": (50, 100)}
    [cut] = found(truncated=both, whole=frozenset({"planner"}))
    assert cut.agent == "solver", "a planner whose replies have one length is not cut off"


def test_replies_are_whole_when_their_one_length_fits_the_limit_of_every_agent_of_the_policy() -> None:
    def whole(limits, policy=None):
        agents = {role: {"policy": policy, "sampling": {"max_tokens": most}} for role, most in limits.items()}
        return advice._whole({"environment": {"type": "reference_game", "message_length": 3}, "agents": agents})

    assert whole({"speaker": 3, "listener": 2}) == {"speaker", "listener"}
    assert whole({"speaker": 2, "listener": 2}) == {"listener"}, "messages of three words are cut to two"
    assert whole({"speaker": 3, "listener": 2}, "both") == {"both"}
    assert whole({"speaker": 2, "listener": 2}, "both") == set()


def test_a_starved_trainer_and_skewed_load_are_tips() -> None:
    def starved(wait):
        return rules(found(series=ends("time/step", [10.0] * 6) | ends("time/wait_samples", [wait] * 6)))

    assert starved(4.9) == set()
    assert starved(5.0) == {("starved_trainer", Severity.TIP)}
    assert found(rollout_s={"a": 29.0, "b": 10.0}) == []
    assert rules(found(rollout_s={"a": 30.0, "b": 10.0})) == {("skewed_agents", Severity.TIP)}
    assert found(engine_busy={"e1": 0.9, "e2": 0.61}) == []
    assert rules(found(engine_busy={"e1": 0.9, "e2": 0.59})) == {("skewed_engines", Severity.TIP)}


def test_alarms_silence_tips_and_come_first() -> None:
    tip = {"engine_busy": {"e1": 0.9, "e2": 0.1}}
    watch = {"truncated": {"solver": (50, 100)}}
    assert [one.severity for one in found(**tip, **watch)] == [Severity.WATCH, Severity.TIP]
    alarm = ends("staleness/own_max", [5], "solver", "max")
    assert [one.severity for one in found(series=alarm, **tip, **watch)] == [Severity.ALARM, Severity.WATCH]
    assert verdict_of(found(**tip)) is AdviceVerdict.HEALTHY
    assert verdict_of(found(**watch)) is AdviceVerdict.WATCH
    assert verdict_of(found(series=alarm)) is AdviceVerdict.DEGRADED


@pytest.fixture
def asked(monkeypatch):
    """Statements that went through the store's connection, which Django does not count."""
    found = []
    real = StoreConnection.execute

    def count(self, query, *args, **options):
        found.append(query)
        return real(self, query, *args, **options)

    monkeypatch.setattr(StoreConnection, "execute", count)
    return found


@pytest.mark.django_db
def test_the_verdict_of_a_list_is_the_one_of_the_run(
    api, editor, make_run, django_assert_max_num_queries, asked
) -> None:
    runs = [make_run(editor, "running") for _ in range(6)] + [make_run(editor, "paused")]
    sick = runs[2]
    points = [(1.0, Metric("groups/useful", step, 0.2, stat="share")) for step in range(30)]
    points += [(1.0, Metric("time/step", step, 1e9)) for step in range(30)]
    _write_metrics(store_connection(), sick.no, points)
    with django_assert_max_num_queries(0):  # the store's own are counted below
        told = queries.verdicts(runs)
    asked.clear()
    assert queries.verdicts(runs) == told
    assert len(asked) == 2, "the same for six runs as for one"
    assert set(told) == {run.no for run in runs[:6]}
    assert told[sick.no]["verdict"] == "watch"
    assert told[runs[0].no]["verdict"] == "healthy"
    answer = api.get(f"/api/v1/runs/{sick.id}/advisories").json()
    assert answer["verdict"] == told[sick.no]
    [row] = answer["results"]
    assert (row["rule"], row["evidence"]["share"]) == ("dead_groups", pytest.approx(0.8))
    assert row["chart"]["web_url"] == f"/runs/{sick.key}#group_signal"
    paused = api.get(f"/api/v1/runs/{runs[6].id}/advisories").json()
    assert (paused["verdict"], paused["results"]) == (None, [])


def test_the_page_about_the_advisor_says_what_the_code_does() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "advisor.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", text, re.MULTILINE))
    assert set(THRESHOLDS) | {cause.value for cause in Cause} == set(rows)
    assert {rule.__name__ for rule in RULES} == set(THRESHOLDS)
    for rule, limits in THRESHOLDS.items():
        numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", rows[rule])}
        assert set(limits.values()) <= numbers, rule
    assert f"less than {LITTLE:g} of leased" in text
