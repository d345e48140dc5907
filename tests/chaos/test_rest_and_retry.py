"""A real run is frozen, gives its devices back, its driver dies meanwhile, it goes on; it is killed and retried."""

from collections.abc import Callable

import psycopg
import pytest

from tests.support.counting import assert_accounted
from tests.support.system import Api, System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(1500)]

STEPS = 8
ENDLESS = 1_000_000
SPEC = {
    "evaluation": {"every_steps": 4, "tasks": 8},
    "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
}


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def api(system: System) -> Api:
    return system.api()


def start(api: Api, name: str, steps: int = STEPS) -> str:
    spec = {**SPEC, "budget": {"train_steps": steps, "target": None}}
    return api.create_run(name=name, template="reference_game", spec=spec)["id"]


def free(api: Api) -> int:
    return sum(device["free"] for device in api.get("/devices")["results"])


def outcome(api: Api, operation: dict) -> tuple[str, object]:
    row = api.get(f"/operations/{operation['id']}")
    return row["state"], (row["result"] or row["error"] or {}).get("status")


def pause(api: Api, run_id: str, **options: object) -> dict:
    operation = api.post(f"/runs/{run_id}/actions/pause", options)
    api.wait(run_id, lambda run: run["status"] == "paused", 300)
    return operation


def assert_counts_add_up(system: System, api: Api, run: dict) -> None:
    report = api.consistency(run["id"])
    failed = [check for check in report["checks"] if not check["ok"]]
    assert not failed, failed
    progress = run["progress"]
    ended = progress["episodes_finished"] + progress["episodes_failed"] + progress["episodes_cancelled"]
    assert progress["episodes_proposed"] == ended
    with psycopg.connect(system.database_url) as conn:
        counted = assert_accounted(conn, run["no"])
        versions = conn.execute(
            "SELECT policy, max(version), count(*) FROM store.policy_version WHERE run_id = %s GROUP BY policy",
            [run["no"]],
        ).fetchall()
    assert counted.in_training + counted.in_training_again == progress["episodes_proposed"], "the API counts as rows do"
    assert counted.in_training_again == progress["episodes_cancelled"], "what was given up was played again"
    assert {(top, rows) for _, top, rows in versions} == {(STEPS, STEPS + 1)}, "every step is one version, once"


@pytest.mark.parametrize("mode", ["freeze", pytest.param("drain", marks=pytest.mark.full)])
def test_a_resting_run_frees_its_devices_and_goes_on_under_another_driver(system: System, api: Api, mode: str) -> None:
    before = free(api)
    run_id = start(api, f"rest {mode}")
    api.wait(run_id, lambda run: run["step"] >= 2, 300)
    paused = pause(api, run_id, mode=mode, hold_s=0)
    resting = api.wait(run_id, lambda run: run["reason"] == "devices_given_back" and free(api) == before, 300)
    system.kill("driver")
    resumed = api.post(f"/runs/{run_id}/actions/resume", {"reason": "back from lunch"})
    api.wait(run_id, lambda run: run["step"] > resting["step"], 300)
    system.kill("driver")
    run = api.finish(run_id, 600)
    assert (run["status"], run["step"], run["attempt"]) == ("completed", STEPS, 2), run["reason_text"]
    assert_counts_add_up(system, api, run)
    assert outcome(api, paused) == ("succeeded", "paused")
    assert outcome(api, resumed) == ("succeeded", "running")
    first, second = api.get(f"/runs/{run_id}/attempts")["results"]
    assert (first["reason"], first["last_step"]) == ("devices_given_back", second["first_step"])
    assert (second["verb"], second["began_by"], second["last_step"]) == ("resume", "admin", STEPS)


def test_a_killed_run_is_retried_and_continues_its_versions(system: System, api: Api) -> None:
    run_id = start(api, "retry")
    api.wait(run_id, lambda run: run["step"] >= 2, 300)
    killed = api.act(run_id, "kill")
    api.wait(run_id, lambda run: run["status"] == "killed", 150)
    retried = api.act(run_id, "retry")
    run = api.wait(run_id, lambda run: run["status"] == "running", 300)
    assert run["finished_at"] is None
    run = api.finish(run_id, 600)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    report = api.consistency(run_id)
    assert report["ok"], [check for check in report["checks"] if not check["ok"]]
    progress = run["progress"]
    ended = progress["episodes_finished"] + progress["episodes_failed"] + progress["episodes_cancelled"]
    assert progress["episodes_proposed"] == ended
    assert outcome(api, killed) == ("succeeded", "killed")
    assert outcome(api, retried) == ("succeeded", "running")
    first, second = api.get(f"/runs/{run_id}/attempts")["results"]
    assert (first["status"], second["verb"], second["status"]) == ("killed", "retry", "completed")
    with psycopg.connect(system.database_url) as conn:
        assert_accounted(conn, run["no"], complete=False)  # what the kill cut off is neither played nor trained
        versions = conn.execute(
            "SELECT policy, max(version), count(*) FROM store.policy_version WHERE run_id = %s GROUP BY policy",
            [run["no"]],
        ).fetchall()
        left = conn.execute("SELECT count(*) FROM store.inbox WHERE run_id = %s", [run["no"]]).fetchone()
    # A policy that had stepped when the kill came keeps that version; its step is played anew for the others.
    assert {(rows - top, top >= STEPS) for _, top, rows in versions} == {(1, True)}
    assert all(first["versions"][policy] <= top for policy, top, _ in versions)
    assert left == (0,)


def test_a_resume_says_what_it_waits_for_while_others_hold_the_devices(system: System, api: Api) -> None:
    """Every device is taken by another run while the first one rests."""
    first = start(api, "first", ENDLESS)
    api.wait(first, lambda run: run["step"] >= 2, 300)
    pause(api, first, mode="freeze", hold_s=0)
    taken = []
    while free(api) >= 2 and len(taken) < 4:
        taken.append(start(api, f"other {len(taken)}", ENDLESS))
        api.wait(taken[-1], lambda run: run["status"] == "running", 300)
    api.act(first, "resume")
    waiting = api.wait(first, lambda run: run["status"] == "resuming" and run["reason"] == "waiting_for_devices", 150)
    assert waiting["allowed_actions"] == ["pause", "stop", "kill"]
    for run_id in taken:
        api.act(run_id, "kill")
    api.wait(first, lambda run: run["status"] == "running", 300)
    api.act(first, "stop")
    run = api.finish(first, 600)
    assert run["status"] == "stopped"
    report = api.consistency(first)
    assert report["ok"], [check for check in report["checks"] if not check["ok"]]
