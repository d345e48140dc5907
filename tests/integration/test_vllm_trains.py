"""A run with the vLLM engine through the real services: it trains, survives the death of its engine, and keeps the
store's promises. A run whose engine cannot start on this machine fails with the reason.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.counting import assert_accounted
from tests.support.engines import needs_vllm
from tests.support.forms import FULL
from tests.support.system import ApiError, System

pytestmark = [needs_vllm, pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 4
ENGINES = "SELECT pid, incarnation FROM store.lease WHERE run_id = %s AND use = 'engine' AND endpoint <> ''"


def spec(size: str = "M", **mechanisms: object) -> dict[str, Any]:
    return {
        "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
        "mechanisms": mechanisms,
        "policies": {role: {"model": {"size": size}} for role in ("guesser", "hinter")},
        "resources": {"engine": "vllm"},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 3, "tasks": 8},
    }


def test_hot_cold_trains_with_vllm_and_survives_its_engine(installations: Callable[[int], System]) -> None:
    system = installations(0)
    api = system.api()
    with pytest.raises(ApiError, match="vLLM supports attention heads of 32, 64"):
        api.create_run(name="narrow", template="hot_cold", spec=spec("S"))
    run_id = api.create_run(name="vllm", template="hot_cold", spec=spec())["id"]
    run = api.wait(run_id, lambda run: run["step"] >= 1, 400)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        engine = conn.execute(ENGINES, [run["no"]]).fetchone()
        assert engine is not None
        os.kill(engine[0], signal.SIGKILL)
        run = api.finish(run_id, 600)
        assert run["status"] == "completed", run["reason_text"]
        assert run["step"] == STEPS
        wrong = [check for check in consistency_report(conn, run["no"]) if not check.ok]
        assert not wrong, wrong
        assert_accounted(conn, run["no"])
    if not FULL:  # engines with two versions: test_vllm_engine.py
        return
    lagging = api.create_run(
        name="two versions", template="hot_cold",
        spec=spec(lag_policy={"bound": 1, "in_flight": "resume"}) | {"budget": {"train_steps": 4, "target": None}},
    )["id"]  # fmt: skip
    run = api.finish(lagging, 600)
    assert run["status"] == "completed", run["reason_text"]
