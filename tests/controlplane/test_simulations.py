"""Simulations over REST, and the process that plays them."""

import csv
import io
import signal
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from flexmarl.controlplane.common.leased_work import MOST_TAKES
from flexmarl.controlplane.simulations import executing
from flexmarl.controlplane.simulations.executing import StopSignal, play, take
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.simulator import simulate
from flexmarl.simulator.scenarios.library import compose
from tests.controlplane.recorded import recorded_run
from tests.support.controlplane import set_state
from tests.support.markup import markup

pytestmark = pytest.mark.django_db
URL = "/api/v1/simulations"
SMALL = {
    "workload": "long_tail",
    "presets": ["flexmarl", "sync"],
    "steps": 2,
    "seeds": 2,
    "changes": ["spec.batch.tasks_per_step=4", "spec.batch.episodes_per_task=2"],
}


def asked(api: Any, **other: Any) -> Any:
    return api.post(URL, {**SMALL, **other}, format="json", HTTP_IDEMPOTENCY_KEY=str(uuid.uuid4()))


def played(api: Any, **other: Any) -> dict[str, Any]:
    made = asked(api, **other)
    assert made.status_code == 202, made.content
    row = take()
    assert row is not None
    play(row, StopSignal())
    return dict(api.get(made["Location"]).json())


def test_what_is_asked_for_is_played_and_told(api: Any) -> None:
    told = played(api, name="small")
    assert (told["state"], told["progress"]["done"], told["name"]) == ("done", 4, "small")
    scenario = compose(
        "long_tail",
        "sync",
        {"steps": 2, "seed": 1, "spec": {"batch": {"tasks_per_step": 4, "episodes_per_task": 2}}},
    )
    expected = simulate(scenario).figures()
    second = told["result"]["presets"]["sync"]["seeds"][1]
    assert {name: second["figures"][name] for name in expected} == expected
    spread = told["result"]["presets"]["sync"]["figures"]["step_s"]
    assert spread["least"] <= spread["mean"] <= spread["most"]
    assert spread["sd"] > 0
    line = api.get(f"{told['url']}/timeline?name=sync").json()
    assert {one["device"] for one in line["intervals"]} <= {one["id"] for one in line["devices"]}
    assert max(one["t1"] for one in line["intervals"]) <= line["seconds"] + 0.001


def test_a_key_that_is_sent_again_makes_nothing_new(api: Any) -> None:
    key = str(uuid.uuid4())
    first, second = (api.post(URL, SMALL, format="json", HTTP_IDEMPOTENCY_KEY=key) for _ in range(2))
    assert first.json()["id"] == second.json()["id"]
    assert Simulation.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({"workload": "hubb"}, "/workload", "hubb does not exist"),
        ({"presets": ["sync", "nobody"]}, "/presets/1", "nobody does not exist"),
        ({"changes": ["steps"]}, "/changes/0", "form PATH=VALUE"),
        ({"changes": ["seed=4"]}, "/changes/0", "seed cannot be changed"),
        ({"changes": ["spec.batch.tasks_per_step=many"]}, "/spec/batch/tasks_per_step", "flexmarl: "),
        ({"changes": ["spec.mechanisms.ordered=true"], "presets": ["bounded_async"]},
         "/spec/mechanisms/lag_policy/bound", "bounded_async: "),
        ({"steps": 0}, "/steps", "steps must be at least 1."),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused_by_name(api: Any, body: dict[str, Any], pointer: str, words: str) -> None:
    answer = asked(api, **body)
    assert answer.status_code == 400, answer.content
    error = answer.json()["errors"][0]
    assert error["pointer"] == pointer
    assert words in error["detail"]


def test_refused_presets_are_left_out_when_asked_for(api: Any) -> None:
    body = {"presets": ["bounded_async", "sync"], "changes": ["spec.mechanisms.ordered=true"]}
    assert asked(api, **body).status_code == 400
    told = asked(api, **body, leave_out_refused=True).json()
    assert told["presets"] == ["sync"]
    (refused,) = told["request"]["refused"]
    assert refused["preset"] == "bounded_async"
    assert refused["problems"][0]["pointer"] == "/spec/mechanisms/lag_policy/bound"
    assert refused["problems"][0]["hint"]


def test_filters_are_strict_and_narrow(api: Any) -> None:
    first = asked(api, name="tail").json()
    asked(api, name="hub", workload="hub", presets=["sync"])

    def names(query: str) -> list[str]:
        return [row["name"] for row in api.get(f"{URL}?{query}").json()["results"]]

    assert names("") == ["hub", "tail"]
    assert names("preset=flexmarl") == ["tail"]
    assert names("workload=hub&state=queued&state=done") == ["hub"]
    assert names("q=TAI") == ["tail"]
    assert "result" not in api.get(URL).json()["results"][0]
    assert api.get(f"{URL}?presets=x").status_code == 400
    assert api.get(f"{URL}?limit=1").json()["next"]
    assert first["state"] == "queued"


def test_cancelling_ends_it_in_the_midst(api: Any, browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = asked(api).json()
    row = take()
    assert row is not None
    monkeypatch.setattr(executing, "BEAT_S", 0.02)
    monkeypatch.setattr(executing.comparing, "simulate", lambda scenario: _cancelled_while_computing(api, made))
    play(row, StopSignal())
    told = api.get(made["url"]).json()
    assert (told["state"], told["result"]) == ("cancelled", None)
    page = markup(browser.get(told["web_url"]))
    assert "Partial results were discarded. “Edit and rerun” opens the form" in page
    assert told["allowed_actions"] == ["delete"]
    again = api.post(f"{made['url']}/actions/cancel", HTTP_IDEMPOTENCY_KEY="x")
    assert (again.status_code, again.json()["code"]) == (409, "invalid_state")
    assert api.delete(made["url"]).status_code == 204
    assert api.get(made["url"]).status_code == 404


def _cancelled_while_computing(api: Any, made: dict[str, Any]) -> None:
    """Cancel, and then compute for long: the alarm has to end it.

    Another process cancels in life. Here the alarm waits for it: it may interrupt what is computed, not a write.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    Simulation.objects.filter(pk=made["id"]).update(state="cancelled", lease_until=None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        pass
    pytest.fail("nothing interrupted it")


def test_an_alarm_never_interrupts_the_write_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executing, "BEAT_S", 0.005)
    within, most, looks = 0, 0, 0

    def look() -> None:
        nonlocal within, most, looks
        within, looks = within + 1, looks + 1
        most = max(most, within)
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass
        within -= 1

    with executing._beating(look) as alarm, alarm():
        while looks < 5:
            pass
    assert most == 1


def test_what_takes_too_long_fails_by_name(api: Any) -> None:
    made = asked(api).json()
    row = take()
    assert row is not None
    play(row, StopSignal(), limit_s=-1.0)
    told = api.get(made["url"]).json()
    assert (told["state"], told["reason"]) == ("failed", "time_limit")
    assert "fewer presets" in told["reason_text"]


def test_a_process_that_ends_gives_it_back(api: Any) -> None:
    made = asked(api).json()
    row, stop = take(), StopSignal()
    assert row is not None
    assert take() is None
    stop.stop = True
    play(row, stop)
    assert api.get(made["url"]).json()["state"] == "queued"
    assert (again := take()) is not None
    assert again.takes == 1


def test_a_process_that_died_is_followed_and_writes_no_more(api: Any) -> None:
    made = asked(api).json()
    dead = take()
    assert dead is not None
    assert take() is None  # its lease holds
    Simulation.objects.filter(pk=dead.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    follower = take()
    assert follower is not None
    assert follower.takes == 2
    play(dead, StopSignal())  # it was frozen, not dead: nothing of it counts
    assert api.get(made["url"]).json()["state"] == "running"
    play(follower, StopSignal())
    assert api.get(made["url"]).json()["state"] == "done"


def test_what_ends_its_process_every_time_is_given_up(api: Any) -> None:
    made = asked(api).json()
    for _ in range(MOST_TAKES):
        assert take() is not None
        Simulation.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert take() is None
    assert api.get(made["url"]).json()["reason"] == "gave_up"


def test_a_preset_without_an_end_is_told_beside_the_others(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flexmarl.simulator import SimulationError

    def stuck(scenario: Any) -> Any:
        if scenario.spec.mechanisms.trainer_protocol == "batch":
            raise SimulationError("nothing is left to happen")
        return simulate(scenario)

    monkeypatch.setattr(executing.comparing, "simulate", stuck)
    told = played(api)
    assert told["state"] == "done"
    assert told["result"]["presets"]["sync"]["error"] == "nothing is left to happen"
    assert told["result"]["presets"]["flexmarl"]["seeds"]


def test_only_those_of_the_project_see_it_and_only_its_owner_ends_it(api, person, client_of) -> None:
    made = asked(api).json()
    colleague, viewer = client_of(person("editor")), client_of(person("viewer"))
    stranger = client_of(person("editor", project="beta"))
    assert colleague.get(made["url"]).status_code == 200
    assert stranger.get(made["url"]).status_code == 404
    assert asked(viewer).status_code == 403
    cancelled = colleague.post(f"{made['url']}/actions/cancel", HTTP_IDEMPOTENCY_KEY="c")
    assert (cancelled.status_code, cancelled.json()["code"]) == (403, "permission_denied")
    assert client_of(person("operator")).post(f"{made['url']}/actions/cancel").status_code == 200


def test_waiting_ones_are_limited_by_project(api: Any, editor: Any) -> None:
    from flexmarl.controlplane.simulations import actions

    one = asked(api).json()
    row = Simulation.objects.get(pk=one["id"])
    Simulation.objects.bulk_create(
        Simulation(kind=row.kind, name="x", project_id="default", request=row.request, owner_id=editor.pk)
        for _ in range(actions.MOST_OPEN - 1)
    )
    answer = asked(api)
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")


def assert_exported(browser: Any, told: dict[str, Any], address: str) -> None:
    """See that the file has a line for each preset and seed, in the page's order, with all that the answer has."""
    answer = browser.get(f"/simulations/{told['id']}/figures.csv?{address}")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert f'filename="simulation-{told["id"]}.csv"' in answer["Content-Disposition"]
    lines = list(csv.DictReader(io.StringIO(answer.content.decode())))
    presets = told["result"]["presets"]
    slowest = sorted(presets, key=lambda name: -presets[name]["figures"]["step_s"]["mean"])
    assert [(line["preset"], line["seed"]) for line in lines] == [(name, seed) for name in slowest for seed in "01"]
    for line in lines:
        row = presets[line["preset"]]["seeds"][int(line["seed"])]
        idle = {f"{use}_idle_{cause}": share for use, own in row["idle"].items() for cause, share in own.items()}
        expected = row["figures"] | idle
        assert len(expected) + 2 == len(line)
        assert {name: float(line[name]) for name in expected} == pytest.approx(expected)


def test_the_pages_show_what_it_came_to(api: Any, browser: Any) -> None:
    told = played(api, name="small", presets=["flexmarl", "sync", "bounded_async"], leave_out_refused=True)
    page = browser.get(f"/simulations/{told['id']}?ordering=-step_s")
    text = markup(page)
    assert page.status_code == 200
    assert text.index("<b>sync</b>") < text.index("<b>flexmarl</b>")  # the slowest first, as the address says
    assert "What the figures mean" in text
    assert_exported(browser, told, "ordering=-step_s")
    data = browser.get(f"/simulations/{told['id']}/figures?of=sync").json()["figures"]
    figures = told["result"]["presets"]["sync"]["figures"]
    rows = {row[0]: row for row in data["step_s"]["table"]["rows"]}
    assert rows["sync"][1] == pytest.approx(figures["step_s"]["mean"], abs=1e-4)
    assert data["devices"]["title"].endswith("sync")
    for use, busy in (("engine", "engine_busy"), ("trainer", "trainer_busy")):
        for row in data[use]["table"]["rows"]:
            whole = sum(row[1:]) + 100 * told["result"]["presets"][row[0]]["figures"][busy]["mean"]
            assert whole == pytest.approx(100.0, abs=0.2), (use, row)
    assert all(figure["meaning"] for figure in data.values())


def test_the_list_is_narrowed_by_its_address_and_tells_what_is_not_legal(api: Any, browser: Any) -> None:
    empty = markup(browser.get("/simulations"))
    assert "No simulations yet" in empty
    asked(api, name="first one")
    asked(api, name="the hub", workload="hub", presets=["sync"])
    text = markup(browser.get("/simulations?workload=hub&state="))
    assert "the hub" in text
    assert "first one" not in text
    assert "Remove the filter Workload hub" in text
    assert "Invalid filter" in markup(browser.get("/simulations?state=asleep"))
    assert "No simulations match these filters" in markup(browser.get("/simulations?q=nothing"))


def test_the_form_is_filled_by_the_address_or_by_another_simulation(api: Any, browser: Any) -> None:
    made = asked(api).json()
    text = markup(browser.get(f"/simulations/new?from={made['id']}&steps=5"))
    assert "spec.batch.tasks_per_step=4" in text
    assert 'name="steps" type="number" min="1" max="200" value="5"' in text
    assert text.count('name="presets"') > text.count('name="presets" value="sync" checked') == 1


def test_a_run_is_played_again_as_it_was_and_with_changes(api: Any, browser: Any, make_run: Any, editor: Any) -> None:
    run = recorded_run(make_run, editor)
    url = f"/api/v1/runs/{run.key}/what-if"
    offered = api.get(url).json()
    assert (offered["episodes"], offered["steps"], offered["enough"]) == (12, 3, True)
    legal = [one["name"] for one in offered["alternatives"] if not one["refused"]]
    refused = {one["name"]: one["refused"][0] for one in offered["alternatives"] if one["refused"]}
    assert refused["publication delayed"]["pointer"] == "/mechanisms/lag_policy/bound"
    wanted = ["trainer_protocol batch", "lag bound 1"]
    assert set(wanted) <= set(legal)
    made = api.post(url, {"alternatives": wanted, "steps": 2, "seeds": 2}, format="json", HTTP_IDEMPOTENCY_KEY="w")
    assert made.status_code == 202, made.content
    row = take()
    assert row is not None
    play(row, StopSignal())
    told = api.get(made["Location"]).json()
    assert (told["state"], told["kind"], told["run"], told["reason_text"]) == ("done", "what_if", run.key, "")
    found = told["result"]["what_if"]
    assert found["actual_step_s"] == 2.0
    assert found["error"] == pytest.approx(found["replay_step_s"] / 2.0 - 1.0, abs=1e-3)
    older = found["advice"][0]
    assert older["name"] == "lag bound 1"  # rollout need not wait for training
    assert 0.0 < older["gain_least"] <= older["gain"] <= older["gain_most"] < 1.0
    assert any("no longer strictly on-policy" in cost for cost in older["costs"])
    assert any("lag grows" in cost for cost in older["costs"])
    assert "engines:" in older["why"] or "trainers:" in older["why"]
    for path in (f"/runs/{run.key}/performance/what-if", told["web_url"]):
        text = markup(browser.get(path))
        assert "the model is off by" in text
        assert "lag bound 1" in text


def test_a_run_that_recorded_too_little_is_refused_by_name(api: Any, browser: Any, make_run: Any, editor: Any) -> None:
    run = recorded_run(make_run, editor, steps=2)
    answer = api.post(f"/api/v1/runs/{run.key}/what-if", HTTP_IDEMPOTENCY_KEY="w")
    assert (answer.status_code, answer.json()["code"]) == (409, "too_little_recorded")
    assert "8 finished episodes of 2 train steps" in answer.json()["detail"]
    assert "Not enough recorded yet" in markup(browser.get(f"/runs/{run.key}/performance/what-if"))
    set_state(run, status="completed", finished_at=timezone.now())
    ended = markup(browser.get(f"/runs/{run.key}/performance/what-if"))
    assert "this run has those of 2. The run has ended: choose one with more steps." in ended
    assert f"/runs/new?from={run.key}" in ended


def test_an_alternative_that_does_not_exist_is_refused_with_those_that_do(api, make_run, editor) -> None:
    run = recorded_run(make_run, editor)
    body = {"alternatives": ["lag bound 1", "faster"]}
    answer = api.post(f"/api/v1/runs/{run.key}/what-if", body, format="json", HTTP_IDEMPOTENCY_KEY="w")
    error = answer.json()["errors"][0]
    assert (answer.status_code, error["pointer"]) == (400, "/alternatives/1")
    assert "lag bound 1" in error["hint"]
    body = {"alternatives": [], "steps": 400, "seeds": 0}
    none = api.post(f"/api/v1/runs/{run.key}/what-if", body, format="json", HTTP_IDEMPOTENCY_KEY="n")
    assert (none.status_code, {one["pointer"]: one["detail"] for one in none.json()["errors"]}) == (
        400,
        {
            "/alternatives": "alternatives needs 1 or more elements.",
            "/steps": "steps must be at most 200.",
            "/seeds": "seeds must be at least 1.",
        },
    ), "none is not all of them"
