"""A file is uploaded over REST and a team of two chat agents trains on it, through every real process."""

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.chat_model import SMOLLM2
from tests.support.chat_templates import small_chat_model
from tests.support.system import System
from workers.models import UnsupportedModel
from workers.models.packaged import file_of

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
STEPS, TASKS = 3, 4
TRAINING, HELD_OUT = 6, 2
"""Fewer training rows than draws: the second epoch begins within the run."""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_chat_model(tmp_path_factory.mktemp("dataset") / "model")


def uploaded(system: System, body: bytes) -> dict[str, Any]:
    api = system.api()
    asked = urllib.request.Request(
        f"{system.url}/api/v1/datasets/files?name=words.jsonl",
        body,
        {"Authorization": f"Bearer {api.token}", "Content-Type": "application/octet-stream"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def test_two_chat_agents_train_on_an_uploaded_file(system: System, model: Path) -> None:
    api = system.api()
    rows = [
        {"chat": [{"role": "system", "content": f"Game {n}."}, {"role": "user", "content": f"Say {n}."}], "answer": n}
        for n in range(TRAINING + HELD_OUT)
    ]
    file = uploaded(system, "\n".join(map(json.dumps, rows)).encode())
    mapping, split = {"messages": "chat", "answer": "answer"}, {"type": "count", "rows": HELD_OUT}
    version = api.post("/datasets", {"name": "words", "file": file["digest"], "mapping": mapping, "split": split})
    policy = {
        "model": {"type": "folder", "path": str(model)},
        "tuning": {"type": "lora", "rank": 4, "alpha": 8},
        "precision": "fp32",
    }
    spec = {
        "environment": {
            "dataset": {"name": "words"},
            "scores": [{"type": "length", "budget": 1, "limit": 9}, {"type": "number", "weight": 3}],
            "graph": {"type": "sequence", "order": ["solver", "reviser"]},
            "reply_tokens": 6,
        },
        "agents": {"solver": {}, "reviser": {}},
        "policies": {"solver": policy, "reviser": policy},
        "batch": {"tasks_per_step": TASKS, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
        "algorithm": {"advantage": {"type": "reinforce"}, "entropy": {"start": 0.05}},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": HELD_OUT},
    }
    run = api.create_run(name="words", template="chat_dataset", spec=spec)
    run = api.finish(run["id"], 600)
    assert run["status"] == "completed", run["reason_text"]
    assert run["spec"]["environment"]["dataset"]["digest"] == version["digest"]

    held_out = {
        row["answer"] for row in api.get(f"{version['url'].removeprefix('/api/v1')}/rows?held_out=true")["results"]
    }
    assert len(held_out) == HELD_OUT
    with psycopg.connect(system.database_url) as conn:
        played = conn.execute(
            "SELECT origin, draw, task #>> '{facts,answer}', facts FROM store.episode WHERE run_id = %s",
            [run["no"]],
        ).fetchall()
        assert all(check.ok for check in consistency_report(conn, run["no"]))
    trained = {draw: answer for origin, draw, answer, _ in played if origin == "train"}
    first = [trained[draw] for draw in sorted(trained)[:TRAINING]]
    assert len(set(first)) == TRAINING, "an epoch plays each row once"
    assert held_out.isdisjoint(trained.values())
    assert {answer for origin, _, answer, _ in played if origin == "eval"} == held_out
    facts = [facts for origin, _, _, facts in played if origin == "train"]
    assert {fact["epoch"] for fact in facts} == {0.0, 1.0}
    assert all({"length", "number", "not_scored", "revised"} <= fact.keys() for fact in facts)


def test_the_commands_of_the_documentation_bring_a_dataset(system: System) -> None:
    try:
        file_of(SMOLLM2.name)
    except UnsupportedModel as missing:
        pytest.skip(str(missing))
    page = (ROOT / "docs/datasets.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert len(commands) == 4
    api = system.api()
    script = "set -e\n" + "\necho\n".join(command.strip() for command in commands)
    known = {"TOKEN": api.token, "URL": system.url, "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    uploaded, preview, version, run = map(json.loads, filter(None, done.stdout.splitlines()))
    assert version["mapping"] == {"messages": "", **uploaded["mapping"]}
    assert (version["training"], version["held_out"]) == (preview["training"], preview["held_out"])
    named = {name: run["spec"]["environment"]["dataset"][name] for name in ("name", "version", "digest")}
    assert named == {"name": "sums", "version": version["number"], "digest": version["digest"]}
    assert run["status"] == "draft"
