"""A chat agent is trained in a server of NeMo Gym, on its data as they are, through every real process."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.integration.test_dataset_trains import uploaded
from tests.support.chat_templates import small_chat_model
from tests.support.gym_endpoint import GymEndpoint, row
from tests.support.system import EXTERNAL_KEY, EXTERNAL_PORT, EXTERNAL_SECRET, System

pytestmark = [pytest.mark.services, pytest.mark.full, pytest.mark.timeout(600)]

ROWS, HELD_OUT = 8, 2
START = 3


@pytest.fixture
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


async def test_an_agent_trains_on_rewards_of_a_server_that_runs_already(system: System, tmp_path: Path) -> None:
    server = GymEndpoint(EXTERNAL_PORT)
    async with server.http:
        await asyncio.to_thread(_trained, system, small_chat_model(tmp_path / "model"), server.host)
    assert set(server.headers) == {f"Bearer {EXTERNAL_KEY}"}
    assert server.paths().count("seed_session") >= server.paths().count("verify") > 0
    verified = [body for path, body in server.heard if path == "verify"]
    assert all(body["response"]["object"] == "response" and body["response"]["output"] for body in verified)


def _trained(system: System, model: Path, host: str) -> None:
    api = system.api()
    rows = [row(f"Say {n}.", START + n % 2) for n in range(ROWS)]
    for one in rows:
        one["responses_create_params"]["tools"] = []  # their schemas are longer than what so small a model reads
    file = uploaded(system, "\n".join(map(json.dumps, rows)).encode())
    mapping, split = {"request": "responses_create_params"}, {"type": "count", "rows": HELD_OUT}
    version = api.post("/datasets", {"name": "counter", "file": file["digest"], "mapping": mapping, "split": split})
    spec = {
        "environment": {
            "url": f"http://{host}/shop", "secret": EXTERNAL_SECRET, "dataset": {"name": "counter"}, "reply_tokens": 6,
        },
        "policies": {
            "player": {
                "model": {"type": "folder", "path": str(model)}, "tuning": {"type": "lora", "rank": 4, "alpha": 8},
                "precision": "fp32",
            }
        },
        "algorithm": {"advantage": {"type": "reinforce"}, "entropy": {"start": 0.05}},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
        "budget": {"train_steps": 2, "target": None},
        "evaluation": {"every_steps": 1, "tasks": HELD_OUT},
    }  # fmt: skip
    run = api.finish(api.create_run(name="counts", template="nemo_gym", spec=spec)["id"], 400)
    assert run["status"] == "completed", run["reason_text"]
    assert run["spec"]["environment"]["dataset"]["digest"] == version["digest"]
    with psycopg.connect(system.database_url) as conn:
        assert [check for check in consistency_report(conn, run["no"]) if not check.ok] == []
        played = conn.execute(
            "SELECT origin, status, team_score, facts FROM store.episode WHERE run_id = %s", [run["no"]]
        ).fetchall()
    assert {status for _, status, *_ in played} == {"finished"}
    assert {origin for origin, *_ in played} == {"train", "eval"}
    assert {score for _, _, score, _ in played} == {0.0, 1.0}, "rows whose count is right as it begins, and others"
    assert all(facts["style"] == 0.5 for *_, facts in played)
    ((_, measured),) = api.series(run["id"], "eval/fact/distance").values()
    assert set(measured) == {0.25}
