"""A file is uploaded over REST and a team of two chat agents trains on it, through every real process."""

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.chat_model import SMOLLM2
from tests.support.chat_templates import small_chat_model
from tests.support.hub_datasets import TEST, TRAIN, grade_school
from tests.support.hub_server import COMMIT, HubServer, hub_server
from tests.support.system import HUB_PORT, System
from workers.models import UnsupportedModel
from workers.models.packaged import file_of

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
STEPS, TASKS = 3, 4
TRAINING, HELD_OUT = 6, 2
"""Fewer training rows than draws: the second epoch begins within the run."""
TALKS = 20
WARMUP = {"steps": 12, "batch_size": TALKS, "learning_rate": 0.01, "demonstrations": {"dataset": {"name": "talks"}}}
"""Conversations that a policy is warmed up on."""


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


def said_by_commands(system: System, section: str, count: int, **more: str) -> list[Any]:
    """Run the commands of a section of the documentation; return the JSON documents that they write. `more` are
    variables that it says the reader sets."""
    page = (ROOT / "docs/datasets.md").read_text(encoding="utf-8")
    text = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert len(commands) == count
    script = "set -e\n" + "\necho\n".join(command.strip() for command in commands)
    known = {"TOKEN": system.api().token, "URL": system.url, "PATH": os.environ["PATH"], **more}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line]


def test_the_commands_of_the_documentation_bring_a_dataset_of_a_hub(system: System, tmp_path: Path) -> None:
    """Its splits become a version with its commit and its files, fetched by the node of a running service."""
    school = HubServer({"openai/gsm8k": grade_school(tmp_path / "gsm8k")})
    with hub_server(school, HUB_PORT):
        fetched, version = said_by_commands(system, "From a hub", 2)
        listed = system.api().post("/datasets/fetches", {"repository": "openai/gsm8k"})
        listing = ended(system, listed["url"])
    assert (fetched["state"], fetched["file"]) == ("done", version["file"]["digest"])
    assert (version["training"], version["held_out"]) == (20, 5)
    origin = version["file"]["origin"]
    assert (origin["commit"], origin["configuration"], origin["licence"]) == (COMMIT, "main", "mit")
    assert [one["path"] for one in origin["files"]] == [*TRAIN, TEST]
    assert [one["name"] for one in listing["configurations"]] == ["main", "pictures"]


def ended(system: System, url: str) -> Any:
    """Return a fetch once it has ended."""
    deadline = time.monotonic() + 60.0
    while (row := system.api().get(url.removeprefix("/api/v1")))["allowed_actions"]:
        assert time.monotonic() < deadline, row
        time.sleep(0.2)
    return row


def test_two_chat_agents_train_on_an_uploaded_file(system: System, model: Path) -> None:
    api = system.api()
    rows = [
        {"chat": [{"role": "system", "content": f"Game {n}."}, {"role": "user", "content": f"Say {n}."}], "answer": n}
        for n in range(TRAINING + HELD_OUT)
    ]
    file = uploaded(system, "\n".join(map(json.dumps, rows)).encode())
    mapping, split = {"messages": "chat", "answer": "answer"}, {"type": "count", "rows": HELD_OUT}
    version = api.post("/datasets", {"name": "words", "file": file["digest"], "mapping": mapping, "split": split})
    talks = [{"messages": [*rows[0]["chat"], {"role": "assistant", "content": f"It is {n}."}]} for n in range(TALKS)]
    file = uploaded(system, "\n".join(map(json.dumps, talks)).encode())
    whole = {"type": "share", "share": 0.0}
    api.post(
        "/datasets", {"name": "talks", "file": file["digest"], "mapping": {"messages": "messages"}, "split": whole}
    )
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
        "policies": {"solver": {**policy, "warmup": WARMUP}, "reviser": policy},
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
    warm = {name: api.series(run["id"], f"fact/warmup_{name}") for name in ("loss_first", "loss_last", "conversations")}
    first, last, count = (found[f"fact/warmup_{name}", "solver", "mean"][1][0] for name, found in warm.items())
    assert (last < 0.95 * first, count) == (True, TALKS)
    talked, again = said_by_commands(system, "From trajectories", 3, RUN=run["key"])
    assert (talked["mapping"], again["columns"]) == (
        {"messages": "messages", "answer": ""},
        ["role", "reward", "trajectory"],
    )
    assert 0 < again["training"] + again["held_out"] <= STEPS * TASKS * 2
    facts = [facts for origin, _, _, facts in played if origin == "train"]
    assert {fact["epoch"] for fact in facts} == {0.0, 1.0}
    assert all({"length", "number", "not_scored", "revised"} <= fact.keys() for fact in facts)


def test_the_commands_of_the_documentation_bring_a_dataset(system: System) -> None:
    try:
        file_of(SMOLLM2.name)
    except UnsupportedModel as missing:
        pytest.skip(str(missing))
    uploaded, preview, version, run = said_by_commands(system, "Bring your dataset", 4)
    assert version["mapping"] == {"messages": "", "request": "", **uploaded["mapping"]}
    assert (version["training"], version["held_out"]) == (preview["training"], preview["held_out"])
    named = {name: run["spec"]["environment"]["dataset"][name] for name in ("name", "version", "digest")}
    assert named == {"name": "sums", "version": version["number"], "digest": version["digest"]}
    assert run["status"] == "draft"


def test_the_commands_of_the_documentation_warm_a_run_up_on_conversations(system: System) -> None:
    try:
        file_of(SMOLLM2.name)
    except UnsupportedModel as missing:
        pytest.skip(str(missing))
    uploaded, version, run = said_by_commands(system, "Warm start on your own conversations", 3)
    assert uploaded["mapping"] == {"messages": "messages", "answer": ""}
    warmup = run["spec"]["policies"]["solver"]["warmup"]
    assert warmup["demonstrations"]["dataset"]["digest"] == version["digest"]
    assert (warmup["steps"], run["status"]) == (20, "draft")


def test_the_commands_of_the_documentation_replay_logged_conversations(system: System) -> None:
    try:
        file_of(SMOLLM2.name)
    except UnsupportedModel as missing:
        pytest.skip(str(missing))
    _, version, run = said_by_commands(system, "Train on logged conversations", 3)
    assert version["held_out"] >= 4
    environment = run["spec"]["environment"]
    assert (environment["type"], environment["dataset"]["digest"]) == ("logged", version["digest"])
    assert run["status"] == "draft"


def test_logged_conversations_are_replayed_and_patch_points_are_shown(system: System, model: Path) -> None:
    """Of a model that knows nothing: its first turn is replaced, its second ends the episode."""
    api = system.api()
    talks = [
        {"messages": [{"role": role, "content": f"{n} {turn}"} for turn in range(3) for role in ("user", "assistant")]}
        for n in range(6)
    ]
    file = uploaded(system, "\n".join(map(json.dumps, talks)).encode())
    mapping, split = {"messages": "messages"}, {"type": "count", "rows": 2}
    version = api.post("/datasets", {"name": "logged", "file": file["digest"], "mapping": mapping, "split": split})
    spec = {
        "environment": {
            "dataset": {"name": "logged"}, "reply_tokens": 4, "patch_writer": "on_policy", "thought_tokens": 3,
        },
        "policies": {
            "solver": {"model": {"type": "folder", "path": str(model)}, "tuning": {"type": "full"}, "precision": "fp32"}
        },
        "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 2},
        "budget": {"train_steps": 1, "target": None},
        "evaluation": {"every_steps": 1, "tasks": 2},
    }  # fmt: skip
    run = api.create_run(name="logged", template="chat_logged", spec=spec)
    run = api.finish(run["id"], 600)
    assert run["status"] == "completed", run["reason_text"]
    assert run["spec"]["environment"]["dataset"]["digest"] == version["digest"]
    with psycopg.connect(system.database_url) as conn:
        assert all(check.ok for check in consistency_report(conn, run["no"]))
        played = conn.execute(
            "SELECT origin, draw, member, facts, transcript FROM store.episode WHERE run_id = %s", [run["no"]]
        ).fetchall()
    assert {(origin, facts["patches"]) for origin, _, _, facts, _ in played} == {("train", 1.0), ("eval", 0.0)}
    assert all(facts["thought_tokens"] > 0 for origin, _, _, facts, _ in played if origin == "train")
    found = api.get(f"/runs/{run['id']}/trajectories?origin=train")["results"][0]
    shown = api.get(f"/runs/{run['id']}/trajectories/{found['id']}")
    assert [entry[:2] for entry in shown["transcript"]] == [["solver", 0], ["solver", 1]]
    assert shown["transcript"][0][2].startswith("Patch point: the logged turn replaced this one, on-policy:")
    assert [one["parts"]["accuracy"] for one in shown["judged"]] == [0.0, 0.0]
    ((_, measured),) = api.series(run["id"], "eval/fact/sop").values()
    assert set(measured) == {0.0}
