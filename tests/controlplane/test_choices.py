"""Devices chosen over REST: a patch that may be submitted unchanged, figures with reasons, refusals with a value."""

import pytest

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments import choices, profiles
from flexmarl.controlplane.experiments.forecaster import Forecaster
from flexmarl.controlplane.inventory.models import Pool
from flexmarl.simulator.choosing.choosing import search
from flexmarl.simulator.choosing.explaining import told
from flexmarl.simulator.prediction.fitting import RunPace, environment_key, model_key
from flexmarl.simulator.prediction.profile import OF_A_MODEL
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts, register_node
from tests.support.controlplane import SPEC, key

pytestmark = pytest.mark.django_db

SMALL = {
    **SPEC,
    "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
    "budget": {"train_steps": 100, "target": None},
    "evaluation": {"every_steps": 50, "tasks": 4},
}
SPEEDS = {"slow": {"engine": 30.0, "trainer": 60.0}, "fast": {"engine": 25.0, "trainer": 6.0}}
"""Kind -> how many times as long engines and trainers take as the defaults of small models."""


class Here:
    """Chooses in this process, without a limit of time."""

    def choose(self, asked):
        return told(search(asked.question()), asked.left_out, asked.unmeasured)


@pytest.fixture
def api(editor, client_of):
    return client_of(editor)


@pytest.fixture
def pools(monkeypatch):
    """Six slow devices at 1 and two fast ones at 4, both measured."""
    monkeypatch.setattr(choices, "FORECASTER", Here())
    conn = store_connection()
    for name, count, price in (("slow", 6, 1.0), ("fast", 2, 4.0)):
        facts = [DeviceFacts(f"{name}.{i}", "cuda", i, name, 2**36) for i in range(count)]
        register_node(conn, NodeFacts(name, f"127.0.0.1:{count}", "n", "1", {}), facts)
        conn.execute("UPDATE store.device SET pool = %s WHERE node = %s", [name, name])
        Pool.objects.create(name=name, device_hour_price=price)
    monkeypatch.setattr(profiles, "measured", lambda: [pace(kind) for kind in SPEEDS])


def pace(kind):
    """Return what a run on a kind of device told of both policies."""
    spec = profiles.ExperimentSpec.model_validate(SMALL)
    times = SPEEDS[kind]
    figures = {name: known.small * times[name.split(".")[0]] for name, known in OF_A_MODEL.items()}
    return RunPace(
        source="runs", engine=f"torch on cuda {kind}", trainer=f"torch on cuda {kind}",
        environment=environment_key(spec), episodes=8,
        models={model_key(spec, "speaker"): figures},
    )  # fmt: skip


def ask(api, choose, spec=SMALL, **body):
    store_connection().execute(
        "UPDATE store.node SET heartbeat_at = now() + interval '1 hour'"
    )  # however slow tests are
    return api.post(
        "/api/v1/runs/plan", {"spec": spec, "choose": choose, **body}, format="json", headers={"Idempotency-Key": key()}
    )


def chosen(api, spec=SMALL, **choose):
    answer = ask(api, choose, spec)
    assert answer.status_code == 200, answer.content
    return answer.json()["choice"]


def refused(api, spec=SMALL, **choose):
    answer = ask(api, choose, spec)
    assert answer.status_code == 400, answer.content
    [error] = answer.json()["errors"]
    return error


def test_what_is_chosen_may_be_submitted_unchanged(api, pools) -> None:
    found = chosen(api, objective="fastest")
    best = found["best"]
    assert (best["rollout_pool"], best["training_pool"]) == ("slow", "fast")
    assert best["simulated"]
    assert best["step_s"]["low"] <= best["step_s"]["likely"] <= best["step_s"]["high"]
    assert best["cost_per_hour"] == pytest.approx(best["rollout_devices"] * 1.0 + best["training_devices"] * 4.0)
    assert best["cost_per_step"]["likely"] == pytest.approx(
        best["cost_per_hour"] * best["step_s"]["likely"] / 3600, rel=1e-2
    )
    made = api.post(
        "/api/v1/runs", {"spec": SMALL, "overrides": best["patch"]}, format="json", headers={"Idempotency-Key": key()}
    )
    assert made.status_code == 201, made.content
    resources = made.json()["spec"]["resources"]
    assert (resources["rollout_pool"], resources["training_pool"]) == ("slow", "fast")
    assert resources["rollout_devices"] == best["rollout_devices"]
    assert resources["training_devices"] == best["training_devices"]
    assert all(plan["why"] for plan in (best, *found["others"]))


def test_a_budget_and_a_deadline_are_kept_and_the_next_device_is_told_with_its_price(api, pools) -> None:
    rich = chosen(api, objective="fastest")["best"]
    poor = chosen(api, objective="fastest", budget_per_hour=6.0)["best"]
    assert poor["cost_per_hour"] <= 6.0 < rich["cost_per_hour"]
    assert poor["step_s"]["likely"] > rich["step_s"]["likely"]
    assert any("budget_per_hour would be exceeded" in line for line in poor["why"])
    least = chosen(api, objective="cheapest")["best"]
    hurry = chosen(api, objective="cheapest", deadline_s=least["hours"]["likely"] * 3600 * 0.7)["best"]
    assert hurry["hours"]["likely"] <= least["hours"]["likely"] * 0.7
    assert hurry["cost"]["likely"] > least["cost"]["likely"]


def test_what_is_out_of_reach_is_refused_with_the_best_there_is_and_that_is_legal(api, pools) -> None:
    error = refused(api, objective="cheapest", deadline_s=1.0)
    assert (error["pointer"], error["code"]) == ("/choose/deadline_s", "out_of_reach")
    assert "the fastest ends after about" in error["detail"]
    legal = float(error["hint"].split("at least ")[1].split(",")[0])
    assert chosen(api, objective="cheapest", deadline_s=legal)["best"]["hours"]["likely"] * 3600 <= legal
    slow = refused(api, objective="fastest", steps_per_hour=1e8)
    assert slow["pointer"] == "/choose/steps_per_hour"
    legal = float(slow["hint"].split("at most ")[1].split(",")[0])
    assert chosen(api, objective="fastest", steps_per_hour=legal)["best"]["step_s"]["likely"] <= 3600 / legal


def test_a_budget_needs_prices_and_says_of_which_pool_and_without_one_none_is_needed(api, pools) -> None:
    Pool.objects.filter(name="fast").update(device_hour_price=None)
    found = chosen(api, objective="fastest", budget_per_step=1.0)
    assert found["best"]["training_pool"] == "slow"
    assert "fast: no price of a device hour." in found["left_out"]
    Pool.objects.update(device_hour_price=None)
    for choose, pointer in (
        ({"objective": "cheapest"}, "/choose/objective"),
        ({"objective": "fastest", "budget": 9.0}, "/choose/budget"),
    ):
        error = refused(api, **choose)
        assert (error["pointer"], error["code"]) == (pointer, "no_price")
        assert "slow" in error["detail"]
        assert "device_hour_price" in error["hint"]
    free = chosen(api, objective="fastest")["best"]
    assert free["cost"] is None
    assert free["cost_per_hour"] is None


def test_nothing_is_trained_on_hosts_that_may_be_taken_away(api, pools) -> None:
    Pool.objects.filter(name="fast").update(preemptible=True)
    assert chosen(api, objective="fastest")["best"]["training_pool"] == "slow"
    Pool.objects.filter(name="slow").update(preemptible=True)
    Pool.objects.filter(name="fast").update(preemptible=False)
    best = chosen(api, objective="fastest")["best"]
    assert best["rollout_pool"] == "slow"
    assert best["patch"]["resources"]["rollout_devices"] == {"min": 1, "max": best["rollout_devices"]}
    assert chosen(api, objective="fastest", preemptible="never")["best"]["rollout_pool"] == "fast"


def test_pools_are_named_from_those_that_may_be_used(api, pools) -> None:
    assert chosen(api, objective="fastest", pools=["fast"])["best"]["rollout_pool"] == "fast"
    error = refused(api, objective="fastest", pools=["fsat"])
    assert (error["pointer"], error["code"]) == ("/choose/pools/0", "unknown_pool")
    assert "fast, slow" in error["hint"]
    store_connection().execute("INSERT INTO store.pool_binding (pool, project) VALUES ('fast', 'other')")
    assert refused(api, objective="fastest", pools=["fast"])["code"] == "unknown_pool"
    assert chosen(api, objective="fastest")["best"]["training_pool"] == "slow"


def test_a_quota_bounds_what_is_chosen_and_free_devices_are_those_that_nobody_has(api, pools) -> None:
    store_connection().execute("INSERT INTO store.pool_quota (pool, project, devices) VALUES ('slow', 'default', 2)")
    assert chosen(api, objective="fastest")["best"]["rollout_devices"] <= 2
    store_connection().execute("UPDATE store.device SET state = 'cordoned' WHERE pool = 'fast'")
    found = chosen(api, objective="fastest", free=True)
    assert "fast: no free device for this project." in found["left_out"]
    assert found["best"]["training_pool"] == "slow"


def test_a_lag_bound_is_chosen_only_where_that_is_allowed(api, pools) -> None:
    strict, loose = (chosen(api, objective="fastest", **more)["best"] for more in ({}, {"max_lag": 2}))
    assert strict["lag_bound"] == 0
    assert "mechanisms" not in strict["patch"]
    assert 0 < loose["lag_bound"] <= 2
    assert loose["patch"]["mechanisms"]["lag_policy"]["bound"] == loose["lag_bound"]
    assert loose["step_s"]["likely"] < strict["step_s"]["likely"]


def test_kinds_that_nobody_measured_are_named(api, pools, monkeypatch) -> None:
    monkeypatch.setattr(profiles, "measured", lambda: [pace("fast")])
    found = chosen(api, objective="fastest")
    assert {line.split(":")[0] for line in found["unmeasured"]} == {"engines on cuda slow", "trainers on cuda slow"}


def test_a_run_whose_trainers_are_partly_apart_is_refused_with_what_is_legal(api, pools) -> None:
    partly = {"allocation": {"type": "colocated", "own_devices": 1}, "trainer_protocol": "batch"}
    mixed = {**SMALL, "mechanisms": partly, "resources": {"rollout_devices": 2, "training_devices": 2}}
    error = refused(api, mixed, objective="fastest")
    assert error["pointer"] == "/mechanisms/allocation/own_devices"
    assert "own_devices: 0" in error["hint"]


def test_the_process_that_predicts_chooses_too(api, pools, monkeypatch) -> None:
    own = Forecaster(limit_s=60.0)
    monkeypatch.setattr(choices, "FORECASTER", own)
    try:
        first = chosen(api, objective="fastest")
        assert chosen(api, objective="fastest")["best"] == first["best"]
    finally:
        own.stop()
    assert first["simulated"] >= 1


@pytest.mark.parametrize(
    ("choose", "pointer"),
    [
        ({}, "/choose/objective"),
        ({"objective": "best"}, "/choose/objective"),
        ({"objective": "fastest", "budget": 0}, "/choose/budget"),
        ({"objective": "fastest", "max_lag": 99}, "/choose/max_lag"),
        ({"objective": "fastest", "dedline_s": 5}, "/choose/dedline_s"),
    ],
)
def test_a_wrong_question_is_refused_with_its_field(api, choose, pointer) -> None:
    answer = ask(api, choose)
    assert answer.status_code == 400
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
