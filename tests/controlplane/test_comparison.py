"""Runs beside each other: variants over seeds, final figures, and the test against the baseline."""

import pytest
from scipy import stats

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry.comparison.statistics import estimate, holm, quantile, two_sided, welch
from tests.support.controlplane import key

FIRST, SECOND = [0.62, 0.71, 0.66, 0.69], [0.51, 0.48, 0.6]


@pytest.mark.parametrize("df", [1, 1.7, 4, 30.5, 400])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.5, 12.0])
def test_students_t_is_that_of_scipy(t: float, df: float) -> None:
    assert two_sided(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=1e-9, abs=1e-14)
    assert quantile(0.975, df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-9)


def test_welchs_test_is_that_of_scipy() -> None:
    made, theirs = welch(FIRST, SECOND), stats.ttest_ind(FIRST, SECOND, equal_var=False)
    assert made is not None
    bounds = theirs.confidence_interval(0.95)
    assert (made.p, made.df) == (pytest.approx(theirs.pvalue), pytest.approx(theirs.df))
    assert (made.low, made.high) == (pytest.approx(bounds.low), pytest.approx(bounds.high))
    one = estimate(FIRST)
    assert one.low == pytest.approx(stats.t.interval(0.95, 3, one.mean, stats.sem(FIRST))[0])


def test_where_seeds_say_nothing_there_is_no_test() -> None:
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 1.0], [2.0, 2.0]) is None
    assert estimate([3.0]).low is None
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def points(run, values: list[float], name: str = "reward/team", agent: str = "") -> None:
    """Write a series of a run, one point a step."""
    for step, value in enumerate(values, start=1):
        store_connection().execute(
            "INSERT INTO store.metric (run_id, name, agent, stat, step, at, samples, value) "
            "VALUES (%s, %s, %s, 'mean', %s, now(), 0, %s)",
            [run.no, name, agent, step, value],
        )


def made(make_run, editor, rate: float, seed: int, end: float):
    policy = {"model": {"type": "factory", "size": "S"}, "optimizer": {"type": "adamw", "learning_rate": rate}}
    run = make_run(editor, seed=seed, policies={"speaker": policy, "listener": policy})
    points(run, [0.0] * 18 + [end, end])
    points(run, [end] * 20, "reward/agent", "speaker")
    return run


@pytest.mark.django_db
def test_runs_that_differ_by_seed_are_one_variant_and_are_tested_against_the_baseline(api, editor, make_run) -> None:
    base = [made(make_run, editor, 0.002, seed, end) for seed, end in enumerate(SECOND)]
    other = [made(make_run, editor, 0.004, seed, end) for seed, end in enumerate(FIRST)]
    named = ",".join(run.key for run in (*other, *base))
    answer = api.get(f"/api/v1/run-comparison?runs={named}&baseline={base[0].key}")
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert [[run["seed"] for run in one["runs"]] for one in found["variants"]] == [[0, 1, 2], [0, 1, 2, 3]]
    assert [one["baseline"] for one in found["variants"]] == [True, False]
    assert sorted(found["pointers"]) == [
        "/policies/listener/optimizer/learning_rate",
        "/policies/speaker/optimizer/learning_rate",
    ]
    (team,) = found["facets"]
    assert team["figures"][1]["mean"] == pytest.approx(sum(FIRST) / 4)
    told = team["figures"][1]["against"]
    assert told["p"] == pytest.approx(stats.ttest_ind(FIRST, SECOND, equal_var=False).pvalue)
    assert team["figures"][0]["against"] is None
    assert team["curves"][1]["low"][-1] == pytest.approx(min(FIRST))
    assert team["curves"][1]["n"][-1] == 4
    agents = api.get(f"/api/v1/run-comparison?runs={named}&metric=reward/agent").json()["facets"]
    assert [one["agent"] for one in agents] == ["speaker"]


@pytest.mark.django_db
def test_a_comparison_names_what_it_cannot_compare(api, editor, make_run) -> None:
    run = make_run(editor)
    assert api.get("/api/v1/run-comparison").json()["errors"][0]["code"] == "required"
    refused = api.get(f"/api/v1/run-comparison?runs={run.key}&baseline=other").json()["errors"][0]
    assert (refused["pointer"], refused["code"]) == ("baseline", "unknown_run")
    assert api.get("/api/v1/run-comparison?runs=nothing").status_code == 404
    many = ",".join(make_run(editor).key for _ in range(21))
    assert api.get(f"/api/v1/run-comparison?runs={many}").json()["errors"][0]["code"] == "too_many"


@pytest.mark.django_db
def test_an_experiment_has_a_question_a_baseline_of_its_own_and_a_verdict(api, editor, make_run) -> None:
    body = {"name": "rates", "question": "Does a higher rate learn faster?"}
    row = api.post("/api/v1/experiments", body, format="json", HTTP_IDEMPOTENCY_KEY=key()).json()
    run, stranger = make_run(editor), make_run(editor)
    moved = api.patch(f"/api/v1/runs/{run.key}", {"experiment": "rates"}, format="json")
    assert moved.json()["experiment"]["name"] == "rates"
    change = {"baseline": run.key, "verdict": "supported", "verdict_text": "**p = 0.01**"}
    changed = api.patch(row["url"], change, format="json").json()
    assert (changed["baseline"]["key"], changed["verdict"], changed["runs"]) == (run.key, "supported", 1)
    refused = api.patch(row["url"], {"baseline": stranger.key}, format="json").json()["errors"][0]
    assert (refused["pointer"], refused["code"]) == ("/baseline", "unknown_run")
    bulk = {"action": "move", "ids": [stranger.key], "experiment": "rates"}
    assert api.post("/api/v1/runs/bulk", bulk, format="json", HTTP_IDEMPOTENCY_KEY=key()).json()["done"] == 1
    assert api.patch(row["url"], {"notes": "x"}, format="json", HTTP_IF_MATCH='W/"1"').status_code == 412
    api.patch(f"/api/v1/runs/{run.key}", {"experiment": ""}, format="json")
    assert api.get(row["url"]).json()["baseline"] is None
    assert api.delete(row["url"]).status_code == 204
    assert api.get(f"/api/v1/runs/{stranger.key}").json()["experiment"] is None
