"""Presets on what a run recorded: asked for over REST and on the form, played, and told with where the load is from."""

import uuid
from typing import Any

import pytest
from django.db import connection

from flexmarl.controlplane.simulations.executing import StopSignal, play, take
from tests.controlplane.recorded import recorded_run
from tests.support.markup import markup

pytestmark = pytest.mark.django_db
URL = "/api/v1/simulations"


def asked(api: Any, **body: Any) -> Any:
    return api.post(URL, {"steps": 2, **body}, format="json", HTTP_IDEMPOTENCY_KEY=str(uuid.uuid4()))


def test_presets_are_compared_on_what_a_run_recorded(api: Any, browser: Any, make_run: Any, editor: Any) -> None:
    run = recorded_run(make_run, editor)
    form = markup(browser.get("/simulations/new"))
    assert f'<option value="{run.key}">{run.key} · 12 episodes of 3 steps</option>' in form
    changes = ["machine.trainer.step=40.0"]
    made = asked(api, run=run.key, presets=["sync", "bounded_async"], seeds=2, changes=changes)
    assert made.status_code == 202, made.content
    assert (made.json()["run"], made.json()["workload"], made.json()["progress"]["total"]) == (run.key, "", 6)
    row = take()
    assert row is not None
    play(row, StopSignal())
    told = api.get(made["Location"]).json()
    assert (told["state"], told["kind"], told["reason_text"]) == ("done", "comparison", "")
    steps = {name: one["figures"]["step_s"]["mean"] for name, one in told["result"]["presets"].items()}
    assert set(steps) == {"as it was", "sync", "bounded_async"}
    record = told["result"]["record"]
    assert (record["episodes"], record["steps"], record["actual_step_s"]) == (12, 3, 2.0)
    assert record["replay_step_s"] == pytest.approx(steps["as it was"], abs=1e-3)
    assert record["error"] == pytest.approx(steps["as it was"] / 2.0 - 1.0, abs=1e-3)
    assert steps["sync"] > 40.0 > steps["as it was"]  # the change is one of presets, not of the run as it was
    assert steps["bounded_async"] < steps["sync"]  # its rollout need not wait for the optimizer step
    page = markup(browser.get(told["web_url"]))
    assert "Source of the load" in page
    assert "the model is off by" in page
    again = markup(browser.get(f"/simulations/new?from={told['id']}"))
    assert f'<option value="{run.key}" selected>' in again
    assert "data-recorded checked" in again


def test_a_load_that_cannot_be_played_is_refused_by_name(
    api: Any, browser: Any, make_run: Any, editor: Any, person: Any, client_of: Any
) -> None:
    long, short = recorded_run(make_run, editor), recorded_run(make_run, editor, steps=2)
    answer = asked(api, run=short.key)
    assert (answer.status_code, answer.json()["code"]) == (409, "too_little_recorded")
    assert answer.json()["errors"][0]["pointer"] == "/run"
    assert short.key not in markup(browser.get("/simulations/new"))
    assert f'"{long.key}" selected' in markup(browser.get(f"/simulations/new?run={long.key}"))
    for body, pointer, code in (
        ({}, "/workload", "required"),
        ({"workload": "hub", "run": long.key}, "/run", "ambiguous"),
        ({"run": "nobody-knows-it"}, "/run", "unknown_value"),
        ({"run": long.key, "project": "elsewhere"}, "/project", "unknown_value"),
        ({"run": long.key, "changes": ["workload.environment=3"]}, "/changes/0", "unknown_field"),
    ):
        answer = asked(api, **body)
        [error] = answer.json()["errors"]
        assert (answer.status_code, error["pointer"], error["code"]) == (400, pointer, code)
        assert error["hint"]
    stranger = client_of(person("editor", project="beta"))
    [foreign] = asked(stranger, run=long.key).json()["errors"]
    [unknown] = asked(stranger, run="nobody-knows-it").json()["errors"]
    assert foreign["detail"].replace(long.key, "X") == unknown["detail"].replace("nobody-knows-it", "X")


@pytest.mark.parametrize("what_if", [False, True], ids=["comparison", "what_if"])
def test_samples_that_were_retired_after_it_was_asked_for_end_it_with_that_word(
    api: Any, make_run: Any, editor: Any, what_if: bool
) -> None:
    run = recorded_run(make_run, editor)
    if what_if:
        made = api.post(f"/api/v1/runs/{run.key}/what-if", HTTP_IDEMPOTENCY_KEY="w")
    else:
        made = asked(api, run=run.key, presets=["sync"])
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM store.sample WHERE run_id = %s AND draw >= 4", [run.no])
    row = take()
    assert row is not None
    play(row, StopSignal())
    told = api.get(made["Location"]).json()
    assert (told["state"], told["reason"]) == ("failed", "too_little_recorded")
    assert "8 finished episodes of 2 train steps stored" in told["reason_text"]
