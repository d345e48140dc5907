"""Plans that predict: ranges with sources, a token that binds them, and the run beside what was predicted."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments import predictions, profiles
from flexmarl.controlplane.experiments.forecaster import MOST_AT_ONCE, Forecaster, PredictionFailed
from flexmarl.controlplane.experiments.models import StoredPlan
from flexmarl.controlplane.inventory.models import Pool
from flexmarl.controlplane.runs.models import Run
from flexmarl.simulator.prediction.fitting import RunPace, environment_key, model_key
from flexmarl.simulator.prediction.predicting import predict
from flexmarl.simulator.prediction.profile import Profile
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts, register_node
from flexmarl.store.telemetry import intervals
from tests.support.controlplane import SPEC, key, set_state
from tests.support.machine import wait_for

pytestmark = pytest.mark.django_db

SMALL = {
    **SPEC,
    "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1},
    "budget": {"train_steps": 10, "target": None},
}


class Here:
    """Predicts in this process."""

    def predict(self, spec, profile):
        return predict(spec, profile, lambda: False, lambda made: False)


@pytest.fixture
def api(editor, client_of):
    return client_of(editor)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(predictions, "FORECASTER", Here())
    facts = [DeviceFacts(f"box.cpu{i}", "cpu", i, "CPU share", 2**33) for i in range(2)]
    register_node(store_connection(), NodeFacts("box", "127.0.0.1:1", "n", "1", {}), facts)


def post(api, path, **body):
    return api.post(f"/api/v1/{path}", body, format="json", headers={"Idempotency-Key": key()})


def plan(api, **spec):
    answer = post(api, "runs/plan", spec=SMALL | spec, predict=True)
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_process_of_its_own_predicts_and_is_ended_when_it_takes_too_long(api, monkeypatch) -> None:
    own = Forecaster(limit_s=60.0)
    monkeypatch.setattr(predictions, "FORECASTER", own)
    try:
        found = plan(api)["prediction"]
        asked = own._process
        assert asked is not None
        assert asked.is_alive()
        own._limit_s = 0.001
        slow = post(api, "runs/plan", spec=SMALL | {"seed": 5}, predict=True)
        assert (slow.status_code, slow.json()["code"]) == (503, "prediction_slow")
        assert slow["Retry-After"]
        assert not asked.is_alive()
        assert plan(api)["prediction"]["step_s"] == found["step_s"]  # remembered
    finally:
        own.stop()
    assert found["step_s"]["low"] < found["step_s"]["likely"] < found["step_s"]["high"]


def test_predictions_that_wait_leave_places_for_other_requests(api, monkeypatch) -> None:
    own, under_way, go = Forecaster(), threading.Event(), threading.Event()

    def ask(question: object, until: float) -> str:
        under_way.set()
        assert go.wait(60)
        raise PredictionFailed("It ends nowhere.")

    monkeypatch.setattr(own, "_ask", ask)
    spec = resolve(SMALL).spec
    with ThreadPoolExecutor(MOST_AT_ONCE) as others:
        asked = [others.submit(own.predict, spec, Profile(figures={})) for _ in range(MOST_AT_ONCE)]
        assert under_way.wait(60)
        wait_for(lambda: not own._places._value)
        monkeypatch.setattr(predictions, "FORECASTER", own)
        refused = post(api, "runs/plan", spec=SMALL, predict=True)
        assert (refused.status_code, refused.json()["code"]) == (503, "prediction_slow")
        assert "2 other predictions are under way" in refused.json()["detail"]
        go.set()
        assert [type(one.exception()) for one in asked] == [PredictionFailed] * MOST_AT_ONCE
    assert plan(api)["warnings"][-1]["code"] == "prediction_failed", "places are free again"


def test_without_being_asked_a_plan_predicts_nothing_and_keeps_nothing(api) -> None:
    found = post(api, "runs/plan", spec=SMALL).json()
    assert found["prediction"] is None
    assert not StoredPlan.objects.exists()


def test_a_prediction_says_where_each_figure_comes_from(api, here) -> None:
    found = plan(api)["prediction"]
    assert {figure["source"] for figure in found["figures"]} == {"default"}
    assert found["cost"] is None
    assert [device["use"] for device in found["devices"]] == ["engine", "trainer"]
    assert all(device["memory"]["fits"] == "yes" for device in found["devices"])
    shares = [cause["likely"] for cause in found["bubble"]["engine"]]
    assert sum(shares) + found["utilisation"]["engine"]["likely"] == pytest.approx(1.0, abs=0.01)


def test_a_price_makes_a_cost_and_another_price_another_plan(api, here) -> None:
    Pool.objects.filter(name="default").update(device_hour_price=2.0)
    found = plan(api)
    cost, hours = found["prediction"]["cost"], found["prediction"]["device_hours"]
    assert cost["likely"] == pytest.approx(2.0 * hours["likely"], abs=1e-3)
    Pool.objects.filter(name="default").update(device_hour_price=3.0)
    refused = post(api, "runs", spec=SMALL, plan_token=found["plan_token"])
    assert (refused.status_code, refused.json()["code"]) == (409, "plan_stale")
    assert [change["what"] for change in refused.json()["changes"]] == ["price"]


def test_a_plan_is_stale_when_what_it_rested_on_has_moved(api, here, monkeypatch) -> None:
    found = plan(api)
    spec = predictions.ExperimentSpec.model_validate(found["spec"])
    told = {"engine.token": 5.0}
    pace = RunPace(
        source="runs", engine="torch on cpu", trainer="torch on cpu", environment=environment_key(spec), episodes=4,
        models={model_key(spec, "speaker"): told}, roles={"speaker": {"role.prompt": 9.0, "role.reply": 3.0}},
    )  # fmt: skip
    monkeypatch.setattr(profiles, "measured", lambda: [pace])
    refused = post(api, "runs", spec=SMALL, plan_token=found["plan_token"])
    assert refused.json()["code"] == "plan_stale"
    assert [change["what"] for change in refused.json()["changes"]] == [
        "profile engine.token listener", "profile engine.token speaker",
    ]  # fmt: skip
    again = plan(api)["prediction"]["figures"]
    known = {(f["name"], f["of"]): (f["source"], f["likely"]) for f in again}
    assert known["engine.token", "speaker"] == ("runs", 5.0)
    assert known["role.reply", "speaker"] == ("runs", 3.0)
    assert known["trainer.token", "speaker"][0] == "default"


def test_devices_that_are_too_small_are_warned_of(api, here) -> None:
    store_connection().execute("UPDATE store.device SET memory_bytes = 160000000")  # a host of both has enough
    found = plan(api)
    assert [(w["code"], w["pointer"]) for w in found["warnings"] if w["code"] == "memory_short"] == [
        ("memory_short", "/resources/rollout_devices"), ("memory_short", "/resources/training_devices"),
    ]  # fmt: skip
    assert {device["memory"]["fits"] for device in found["prediction"]["devices"]} == {"no"}


def test_a_policy_that_no_device_of_its_pool_can_hold_is_refused_with_both_figures(api, here) -> None:
    store_connection().execute("UPDATE store.device SET memory_bytes = 1000000")
    found = plan(api)
    refused = {one["pointer"]: one for one in found["errors"]}
    assert set(refused) == {"/policies/speaker/model", "/policies/listener/model"}
    for one in refused.values():
        assert one["code"] == "memory_short"
        assert re.search(r"needs at least 0\.\d\d GiB; the largest device of default has 0\.00 GiB\.", one["detail"])
        assert "or a pool of larger devices" in one["hint"]
    answer = post(api, "runs", spec=SMALL)
    assert answer.status_code == 400
    assert {one["code"] for one in answer.json()["errors"]} == {"memory_short"}
    store_connection().execute("UPDATE store.device SET memory_bytes = 0")  # not known: nobody is refused
    assert plan(api)["errors"] == []


def test_a_run_that_cannot_be_simulated_is_planned_without_a_prediction(api, here, monkeypatch) -> None:
    def refuse(*_):
        raise PredictionFailed("Members that branch are not simulated.")

    monkeypatch.setattr(Here, "predict", refuse)
    found = plan(api)
    assert found["prediction"] is None
    assert found["warnings"][-1]["code"] == "prediction_failed"
    assert post(api, "runs", spec=SMALL, plan_token=found["plan_token"]).status_code == 201


def test_a_run_stands_beside_what_was_predicted_of_it(api, here, browser) -> None:
    made = post(api, "runs", spec=SMALL, plan_token=plan(api)["plan_token"]).json()
    told = api.get(f"/api/v1/runs/{made['id']}/prediction").json()
    assert told["actual"] is None
    assert made["plan"]["step_s"] == told["predicted"]["step_s"]
    run, now = Run.objects.get(pk=made["id"]), time.time()
    play(run, now)
    told = api.get(f"/api/v1/runs/{run.id}/prediction").json()
    assert told["actual"]["step_s"] == pytest.approx(5.0)
    assert told["actual"]["utilisation"] == pytest.approx({"engine": 0.4, "trainer": 0.1}, abs=0.01)
    assert told["actual"]["hours"] == pytest.approx((20 + 9 * 5.0) / 3600, rel=0.05)
    steps = told["compared"][0]
    assert (steps["name"], steps["actual"], steps["within"]) == ("step_s", pytest.approx(5.0), False)
    page = browser.get(f"/runs/{run.key}").content.decode()
    assert "Predicted and actual" in page
    assert "over its last 2 steps" in page
    part = browser.get(f"/runs/{run.key}/parts/planned").content.decode()
    assert "over its last 2 steps" in part
    assert "<html" not in part, "it is read again while the run goes on"


def play(run: Run, now: float, node: str = "box") -> None:
    """Three steps, the last two of 5 s; the engine works 4 s of these 10, the trainer 1."""
    conn = store_connection()
    facts = [DeviceFacts(f"{node}.cpu{i}", "cpu", i) for i in range(2)]
    register_node(conn, NodeFacts(node, "127.0.0.1:1", "n", "1", {}), facts)
    set_state(run, step=3, status="completed")
    conn.execute("UPDATE store.run_state SET started_at = to_timestamp(%s) WHERE run_id = %s", [now - 30, run.no])
    for step in range(1, 4):
        conn.execute(
            "INSERT INTO store.metric (run_id, name, stat, step, value, at)"
            " VALUES (%s, 'time/step', 'mean', %s, 5, to_timestamp(%s))",
            [run.no, step, now - 10 + 5 * (step - 1)],
        )
    for no, (use, phase, seconds) in enumerate([("engine", "rollout", 4.0), ("trainer", "train", 1.0)]):
        row = conn.execute(
            "INSERT INTO store.lease (device_id, run_id, use, granted_at) VALUES (%s, %s, %s, to_timestamp(%s))"
            " RETURNING id",
            [f"{node}.cpu{no}", run.no, use, now - 20],
        ).fetchone()
        rows = [
            intervals.BusyInterval(0, phase, "speaker", now - 14.0, now - 12.0),  # before the first step was served
            intervals.BusyInterval(1, phase, "speaker", now - 8.0, now - 8.0 + seconds, steps=3, prompts=5),
        ]
        intervals.put(conn, run.no, row[0], f"{node}.cpu{no}", incarnation="i", rows=rows)


def test_a_run_without_a_plan_has_no_prediction(api) -> None:
    made = post(api, "runs", spec=SMALL).json()
    assert made["plan"] is None
    assert api.get(f"/api/v1/runs/{made['id']}/prediction").status_code == 404


def test_a_short_run_measures_a_team(api, person, client_of) -> None:
    made = post(api, "runs/measure", spec={**SMALL, "resources": {"pace": {"step_s": 9.0}}})
    assert made.status_code == 201, made.content
    run = made.json()
    assert (run["tags"], run["name"]) == (["profile"], "Profile of code words")
    assert run["spec"]["budget"]["train_steps"] == 12
    assert run["spec"]["resources"]["pace"]["step_s"] == 0.0
    assert run["pending_verb"] == "start"
    viewer = client_of(person("viewer"))
    assert post(viewer, "runs/measure", spec=SMALL).status_code == 403


@pytest.mark.parametrize(
    ("batch", "measured"),
    [
        ({"tasks_per_step": 96, "episodes_per_task": 8, "micro_batch_groups": 16}, (97, 16)),
        ({"tasks_per_step": 96, "episodes_per_task": 8, "micro_batch_groups": 1}, (96, 31)),
        ({"tasks_per_step": 4096, "episodes_per_task": 8, "micro_batch_groups": 512}, (512, 170)),
    ],
)
def test_a_team_is_measured_at_the_size_of_its_steps(api, batch, measured) -> None:
    """And with a small micro-batch beside the large ones: two sizes tell what a token takes."""
    run = post(api, "runs/measure", spec={**SMALL, "batch": {**SMALL["batch"], **batch}}).json()
    made = run["spec"]["batch"]
    assert (made["tasks_per_step"], made["micro_batch_groups"]) == measured
    assert made["tasks_per_step"] % made["micro_batch_groups"], "one of them is small"
