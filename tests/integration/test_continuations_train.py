"""Members that continue others, through the real services: nothing is lost, doubled or different after kills.

Ordered runs are compared bit by bit: one in which nobody continues is a plain one, and one whose driver and rollout
worker are killed ends in the weights of an undisturbed one. The rows are asked afterwards, and each log is replayed.
"""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.bits import bits_of
from tests.support.chaos import patient
from tests.support.promised import kept_its_promises
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.full, pytest.mark.timeout(1800)]

STEPS, MEMBERS = 4, 6
BRANCHED = "SELECT target, reason FROM store.ruling WHERE run_id = %s AND kind = 'group_branched' ORDER BY target"


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def spec(controller: object) -> dict[str, Any]:
    return {
        "seed": 7,
        "batch": {"tasks_per_step": 6, "episodes_per_task": MEMBERS, "micro_batch_groups": 2, "rollout_groups": 2},
        "sampling": {"branch_controller": controller},
        "mechanisms": {"ordered": True},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
        "checkpoints": {"every_steps": 100},
    }


def has_stepped(run: dict[str, Any]) -> bool:
    return bool(run["step"] >= 1)


def branched(system: System, run_no: int) -> list[tuple[str, str]]:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        return conn.execute(BRANCHED, [run_no]).fetchall()


def test_ordered_runs_continue_the_same_episodes_whoever_is_killed(system: System) -> None:
    api, bits, said, ids = system.api(), {}, {}, {}
    for name, kind in {
        "plain": "none",
        "nobody": {"type": "trace", "share": 0},
        "quiet": "trace",
        "hit": "trace",
    }.items():
        run_id = api.create_run(name=name, template="hot_cold", spec=spec(kind))["id"]
        if name == "hit":
            patient(lambda run_id=run_id: api.wait(run_id, has_stepped, 300))
            system.kill("driver")
            system.kill("rollout-worker")
        run = patient(lambda run_id=run_id: api.finish(run_id, 400))
        assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
        kept_its_promises(system, run["no"])
        found = bits_of(system.database_url, run["no"])
        bits[name] = (found.samples, found.sums, found.weights, found.states)
        said[name], ids[name] = branched(system, run["no"]), run_id
    assert bits["plain"] == bits["nobody"]
    assert said["plain"] == said["nobody"] == []
    assert bits["quiet"] == bits["hit"] != bits["plain"]
    assert said["quiet"] == said["hit"]
    target, reason = said["quiet"][0]
    group = api.get(f"/runs/{ids['quiet']}/groups/{target.partition(':')[2]}")
    assert ("group_branched", reason) in [(one["kind"], one["reason"]) for one in group["rulings"]]
    assert "members go on where another outcome is likeliest" in reason
    assert len(group["members"]) == MEMBERS


def test_replies_are_continued_through_all_services_and_nothing_is_lost_or_doubled(system: System) -> None:
    api = system.api()
    controller = {
        "type": "echo", "high_quantile": 0.5, "low_quantile": 0.1, "confidence_quantile": 1.0, "jump_quantile": 0.0,
    }  # fmt: skip
    changes = spec(controller) | {"environment": {"message_length": 8}, "mechanisms": {"ordered": False}}
    run_id = api.create_run(name="echo", template="reference_game", spec=changes)["id"]
    patient(lambda: api.wait(run_id, has_stepped, 300))
    system.kill("rollout-worker")
    run = patient(lambda: api.finish(run_id, 400))
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    kept_its_promises(system, run["no"])
    said = branched(system, run["no"])
    assert said
    assert all("members go on at a token in doubt" in reason for _, reason in said)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        rows = conn.execute(
            "SELECT transcript::text FROM store.episode WHERE run_id = %s AND transcript::text LIKE %s",
            [run["no"], "%tokens of its turn 1%"],
        ).fetchall()
    assert rows
