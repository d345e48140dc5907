"""A run whose commands run in containers, in a whole installation: trained, struck, and nothing left behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.support.chaos import Chaos, Kind, patient
from tests.support.chat_templates import small_chat_model
from tests.support.containers import IMAGE, Engine, left_groups, made_engine
from tests.support.machine import wait_for
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

SAID = "said-in-a-container.json"
ASK = f"""
wget -q -O {SAID} --header "Authorization: Bearer $OPENAI_API_KEY" --header 'Content-Type: application/json' \\
  --post-data '{{"model": "solver", "messages": [{{"role": "user", "content": "What is 1+1?"}}]}}' \\
  "$OPENAI_BASE_URL/chat/completions" && sleep 2 && echo "0.$((NUMBER % 2))" > reward.json
"""


def spec_of(model: Path) -> dict[str, Any]:
    return {
        "environment": {
            "type": "program", "seats": ["solver"], "reply_tokens": 6, "boot_timeout_s": 120, "run_timeout_s": 300,
            "runner": {
                "type": "command", "command": ["sh", "-c", ASK], "env": {"NUMBER": "{task}"},
                "container": {"image": IMAGE},
            },
        },
        "agents": {"solver": {}},
        "policies": {
            "solver": {
                "model": {"type": "folder", "path": str(model)},
                "tuning": {"type": "lora", "rank": 4, "alpha": 8},
                "precision": "fp32",
            }
        },
        "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
        "algorithm": {"advantage": {"type": "reinforce"}},
        "budget": {"train_steps": 3, "target": None},
        "evaluation": {"every_steps": 100_000, "tasks": 2},
    }  # fmt: skip


def contained() -> list[psutil.Process]:
    """Return the processes of this test's containers."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if any(SAID in word for word in words) and process.info["name"] in ("sh", "wget", "podman", "conmon"):
            found.append(process)
    return found


@pytest.fixture
def engine() -> Iterator[Engine]:
    with made_engine() as engine:
        yield engine


def test_a_run_trains_in_containers_through_a_kill_and_leaves_none(tmp_path: Path, engine: Engine) -> None:
    settings = {"FLEXMARL_CONTAINER_ENGINE": engine.command, "FLEXMARL_MODEL_ROOTS": str(tmp_path)}
    model = small_chat_model(tmp_path / "model")
    with System(tmp_path / "home", environment=settings) as system:
        api = system.api()
        run = api.create_run(name="contained", spec=spec_of(model))
        wait_for(contained, 300)
        Chaos(system, run["no"], 5).strike(Kind.ROLLOUT)
        run = patient(lambda: api.finish(run["id"], 600))
        assert run["status"] == "completed", run["reason_text"]
        wait_for(lambda: not contained(), 60)
        with psycopg.connect(system.database_url) as conn:
            images = conn.execute(
                "SELECT DISTINCT image FROM store.program_session WHERE run_id = %s AND state = 'finished'", [run["no"]]
            ).fetchall()
        assert len(images) == 1
        assert images[0][0].startswith(f"{IMAGE}@sha256:")
    wait_for(lambda: not left_groups(), 60)
