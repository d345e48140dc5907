"""A chat agent is trained by mathematics, a program's tests and a judge at once, through every real process."""

import asyncio
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.chat_endpoint import ChatEndpoint
from tests.support.chat_templates import small_chat_model
from tests.support.system import EXTERNAL_PORT, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 8
DATASET = "judged_numbers"
NO_NUMBER = "I cannot say"


@pytest.fixture
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


async def test_an_agent_trains_on_what_is_computed_apart_and_what_a_judge_says(system: System, tmp_path: Path) -> None:
    async with ChatEndpoint(_verdict, port=EXTERNAL_PORT) as endpoint:
        await asyncio.to_thread(_trained, system, tmp_path, endpoint)
    told = [asked["messages"][-1]["content"] for asked in endpoint.requests]
    assert all(len(asked["messages"]) == 1 for asked in endpoint.requests), "a judge knows of one answer at a time"
    assert told
    assert all("Is it short?" in one and "The right answer" in one for one in told)


def _verdict(asked: dict) -> str:
    return NO_NUMBER if "Say 0." in asked["messages"][-1]["content"] else "Short enough.\nscore: 3"


def _trained(system: System, folder: Path, endpoint: ChatEndpoint) -> None:
    small_chat_model(folder / "model")
    api = system.api()
    _imported(system)
    run = api.finish(api.create_run(name="judged", template="chat_dataset", spec=_spec(folder, endpoint))["id"], 400)
    assert run["status"] == "completed", run["reason_text"]
    with psycopg.connect(system.database_url) as conn:
        assert [check for check in consistency_report(conn, run["no"]) if not check.ok] == []
        rows = conn.execute(
            "SELECT status, reason, facts, judged, draw, member, attempt, task #>> '{facts,answer}' "
            "FROM store.episode WHERE run_id = %s", [run["no"]],
        ).fetchall()  # fmt: skip
        trained = conn.execute("SELECT DISTINCT policy FROM store.micro_batch WHERE run_id = %s", [run["no"]])
        assert trained.fetchall() == [("solver",)]
    finished = [row for row in rows if row[0] == "finished"]
    assert finished
    for _, _, facts, judged, *_ in finished:
        assert facts["judge"] == 0.3
        assert {"math", "code", "judge"} == set(judged[0]["parts"])
        assert judged[0]["why"]["judge"] == "Short enough.\nscore: 3"
        assert "tests passed" in judged[0]["why"]["code"] or "no program" in judged[0]["why"]["code"]
    missing = [row for row in rows if row[-1] == "0"]
    assert all(status == "failed" and reason.startswith("reward: judge: no number") for status, reason, *_ in missing)
    assert all(row[6] == 1 for row in missing), "nobody plays again for a reward"
    draw, member, attempt = finished[0][4:7]
    shown = api.get(f"/runs/{run['id']}/trajectories/{draw}-{member}-{attempt}")
    assert shown["judged"] == finished[0][3]
    tried = api.post(f"{_url(api)}/rows/3/score", {"scores": ["math", "code"], "reply": "2"})
    assert tried["parts"] == {"math": 1.0, "code": 0.0}
    assert "Landlock" in tried["sandbox"]


def _url(api: object) -> str:
    dataset = next(one for one in api.get("/datasets")["results"] if one["name"] == DATASET)  # type: ignore[attr-defined]
    return f"/datasets/{dataset['id']}/versions/1"


def _imported(system: System) -> None:
    api = system.api()
    rows = [{"ask": f"Say {n}.", "answer": n, "tests": [{"input": "", "output": str(n)}]} for n in range(ROWS)]
    asked = urllib.request.Request(
        f"{system.url}/api/v1/datasets/files?name=numbers.jsonl",
        "\n".join(map(json.dumps, rows)).encode(),
        {"Authorization": f"Bearer {api.token}", "Content-Type": "application/octet-stream"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        file = json.load(answer)["digest"]
    mapping, split = {"prompt": "ask", "answer": "answer"}, {"type": "count", "rows": 2}
    api.post("/datasets", {"name": DATASET, "file": file, "mapping": mapping, "split": split})


def _spec(folder: Path, endpoint: ChatEndpoint) -> dict:
    return {
        "environment": {
            "dataset": {"name": DATASET},
            "scores": ["math", {"type": "code", "read": "whole"}, {"type": "judge", "rubric": "Is it short?"}],
            "reply_tokens": 6,
        },
        "agents": {
            "solver": {},
            "judge": {
                "trainable": False, "external": {"url": endpoint.url, "model": "judge"}, "sampling": {"max_tokens": 64}
            },
        },
        "policies": {
            "solver": {
                "model": {"type": "folder", "path": str(folder / "model")},
                "tuning": {"type": "lora", "rank": 4, "alpha": 8},
                "precision": "fp32",
            }
        },
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
        "algorithm": {"advantage": {"type": "reinforce"}, "entropy": {"start": 0.05}},
        "budget": {"train_steps": 2, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
    }  # fmt: skip
