"""A shared device generates for a while only: its replies go on with another engine, and its trainer begins beside it.

Through the real services with real engines and trainers. Ordered steps are those of a run whose trainer has a device of
its own; without order running replies are handed over with the tokens that they have.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.bits import bits_of
from tests.support.chat_templates import small_chat_model
from tests.support.promised import kept_its_promises
from tests.support.system import MANY_DEVICES, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

STEPS = 4
SPREAD = {"latency": {"scale_s": 0.3, "sigma": 1.0, "cap_s": 3.0}}
"""Games end over seconds: a trainer has begun long before the last one ends."""
SLOW = {"latency": {"scale_s": 0.1, "sigma": 0.0, "slow_share": 0.04, "slow_s": 4.0}}
"""Few games end late; which, the seed says. The first groups of an `ordered` step must have none to begin early."""
WINDOW = {"type": "colocated", "window": {"type": "fixed", "seconds": 0.05}}
EARLY = """
SELECT count(*) FROM store.ruling WHERE run_id = %s AND kind = 'devices_turned' AND reason LIKE '%%go on with%%'
"""
BESIDE = """
SELECT count(*) FROM store.event a WHERE a.run_id = %(run)s AND a.kind = 'micro_batch_accumulated' AND EXISTS (
  SELECT 1 FROM store.event g WHERE g.run_id = a.run_id AND g.kind = 'group_settled' AND g.seq > a.seq
  AND NOT EXISTS (SELECT 1 FROM store.event s WHERE s.run_id = a.run_id AND s.kind = 'step_committed'
                  AND s.seq BETWEEN a.seq AND g.seq))
"""

MOVED = "SELECT count(*) FROM store.episode WHERE run_id = %s AND transcript::text LIKE '%%moved%%between engines%%'"

AGAIN = "SELECT count(*) FROM store.episode WHERE run_id = %s AND (attempt > 1 OR status <> 'finished')"


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


def spec(allocation: object, ordered: bool, **more: object) -> dict[str, Any]:
    return {
        "seed": 3,
        "environment": SLOW,
        "batch": {"tasks_per_step": 12, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
        "mechanisms": {"allocation": allocation, "ordered": ordered},
        "resources": {"rollout_devices": 2, "training_devices": 1},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 4},
        **more,
    }


def counted(system: System, query: str, run_no: int) -> int:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        found = conn.execute(query.replace("%s", "%(run)s"), {"run": run_no}).fetchone()
    return int(found[0]) if found else 0


def completed(system: System, run: dict[str, Any]) -> int:
    ended = system.api().finish(run["id"], 500)
    assert (ended["status"], ended["step"]) == ("completed", STEPS), ended["reason_text"]
    kept_its_promises(system, ended["no"])
    return int(ended["no"])


def test_ordered_steps_are_those_of_a_trainer_with_a_device_of_its_own(system: System) -> None:
    made = {}
    for name, allocation in {"own": "static", "window": WINDOW}.items():
        run = system.api().create_run(name=name, template="reference_game", spec=spec(allocation, True))
        made[name] = completed(system, run)
    assert bits_of(system.database_url, made["window"]) == bits_of(system.database_url, made["own"])
    assert counted(system, EARLY, made["window"]) > 0
    assert counted(system, BESIDE, made["window"]) > 0, "gradients while the other engine played"


def test_running_replies_of_a_chat_model_are_handed_over(system: System, tmp_path: Path) -> None:
    path = str(small_chat_model(tmp_path / "model"))
    tuning = {"type": "lora", "rank": 4, "alpha": 8}
    policy = {"model": {"type": "folder", "path": path}, "tuning": tuning, "precision": "fp32"}
    more = {
        "environment": {"type": "sums", "reply_tokens": 100, **SPREAD},
        "policies": {"solver": policy, "reviser": policy},
    }
    run = system.api().create_run(name="handed", template="chat_sums", spec=spec(WINDOW, False, **more))
    no = completed(system, run)
    assert counted(system, EARLY, no) >= STEPS - 1
    assert counted(system, BESIDE, no) > 0
    assert counted(system, MOVED, no) > 0, "replies were made by two engines"
    assert counted(system, AGAIN, no) == 0, "no episode was played anew"
