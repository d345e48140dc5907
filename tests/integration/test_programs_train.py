"""Agent programs train unmodified: a client of OpenAI plays sessions of a run, through every real process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.agent_program import Program, solve, take
from tests.support.chat_templates import small_chat_model
from tests.support.machine import wait_for
from tests.support.system import ROOT, ApiError, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 2
EPISODES = STEPS * 2 * 2


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_chat_model(tmp_path_factory.mktemp("programs") / "model")


def spec_of(model: Path, **environment: Any) -> dict[str, Any]:
    policy = {
        "model": {"type": "folder", "path": str(model)},
        "tuning": {"type": "lora", "rank": 4, "alpha": 8},
        "precision": "fp32",
    }
    return {
        "environment": {"type": "program", "seats": ["solver", "reviser"], "reply_tokens": 6, **environment},
        "agents": {"solver": {}, "reviser": {}},
        "policies": {"solver": policy, "reviser": policy},
        "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
        "algorithm": {"advantage": {"type": "reinforce"}},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
    }


def test_a_program_of_two_seats_trains_both(system: System, model: Path) -> None:
    api = system.api()
    run = api.create_run(name="program", spec=spec_of(model, reward_timeout_s=240))
    programs = [Program(api, run["id"]), Program(api, run["id"], stream=True, later_s=0.5)]
    for program in programs:
        program.start()
    try:
        run = api.finish(run["id"], 300)
    finally:
        for program in programs:
            program.ended.set()
            program.join(60)
    assert [program.failure for program in programs] == [None, None]
    assert [program.lost for program in programs] == [[], []]
    assert run["status"] == "completed", run["reason_text"]
    assert run["step"] == STEPS
    tokens = run["progress"]["tokens"]
    assert tokens["sampled"] == tokens["delivered"] > 0
    assert tokens["breaks"] == {}
    with psycopg.connect(system.database_url) as conn:
        rows = conn.execute(
            "SELECT s.role, s.turn, jsonb_array_length(s.spans) FROM store.sample s "
            "JOIN store.episode e USING (run_id, draw, member, attempt) WHERE s.run_id = %s AND e.origin = 'train'",
            [run["no"]],
        ).fetchall()
        assert all(check.ok for check in consistency_report(conn, run["no"]))
    assert len(rows) == 2 * EPISODES
    assert set(rows) == {("solver", 0, 2), ("reviser", 0, 2)}, "each seat's calls are one chain"
    played = {**programs[0].played, **programs[1].played}
    sessions = api.get(f"/runs/{run['id']}/sessions?limit=100&state=finished")["results"]
    late = {one["id"] for one in sessions if one["reward_deadline_at"] is not None}
    assert late == set(programs[1].played) != set(), "rewards of the second program arrive after its sessions"
    trained = [one for one in sessions if one["purpose"] == "training" and one["trajectory"] is not None]
    assert {(one["calls"], one["chains"]) for one in trained} == {(4, 2)}
    assert sum(one["tokens"]["delivered"] for one in trained) == tokens["delivered"]
    assert all(one["tokens"]["sampled"] == one["tokens"]["delivered"] for one in trained)
    shown = api.get(f"/runs/{run['id']}/trajectories?limit=100")["results"]
    for one in shown:
        found = api.get(f"/runs/{run['id']}/trajectories/{one['id']}")
        said = played[found["task"]["facts"]["session"]]
        turns = found["turns"]
        assert [turn["role"] for turn in turns] == ["solver", "reviser"] * 2
        assert [turn["response_text"].removesuffix("<|im_end|>") for turn in turns] == said
        assert f"The reviser said: {said[1]}" in turns[2]["prompt_text"]


def test_awaited_rewards_meet_pauses_and_a_killed_worker(system: System, model: Path) -> None:
    api = system.api()
    spec = {**spec_of(model, reward_timeout_s=240), "budget": {"train_steps": 1, "target": None}}
    run = api.create_run(name="awaited", spec=spec)
    program = Program(api, run["id"])

    def awaiting() -> dict[str, Any]:
        session = take(api, run["id"], program.ended)
        assert session is not None
        solve(session)
        program.finish(session["id"], {"reward_later": True})
        return session

    def over(session: dict[str, Any]) -> str:
        """Wait until a session has ended without its reward, which is refused from then on; return why."""
        path = f"/runs/{run['id']}/sessions/{session['id']}"
        wait_for(lambda: api.get(path)["state"] == "ended", 60)
        with pytest.raises(ApiError, match="session_over"):
            program.finish(session["id"], {"reward": 1.0})
        return str(api.get(path)["reason"])

    kept = awaiting()
    api.act(run["id"], "pause")
    api.wait(run["id"], lambda row: row["status"] == "pausing", 60)
    program.finish(kept["id"], {"reward": 1.0})
    wait_for(lambda: api.get(f"/runs/{run['id']}/sessions/{kept['id']}")["state"] == "finished", 60)
    api.act(run["id"], "resume")
    frozen = awaiting()
    api.post(f"/runs/{run['id']}/actions/pause", {"mode": "freeze"})
    api.wait(run["id"], lambda row: row["status"] == "paused", 120)
    over(frozen)
    api.act(run["id"], "resume")
    lost = awaiting()
    assert system.process is not None
    [worker] = [one for one in psutil.Process(system.process.pid).children(recursive=True) if plays(one)]
    worker.kill()
    assert "rollout worker" in over(lost)
    program.start()
    try:
        ended = api.finish(run["id"], 300)
    finally:
        program.ended.set()
        program.join(60)
    assert (ended["status"], ended["step"]) == ("completed", 1), ended["reason_text"]
    with psycopg.connect(system.database_url) as conn:
        assert all(check.ok for check in consistency_report(conn, run["no"]))


@pytest.mark.full
def test_the_example_plays_a_run_to_its_end_though_a_worker_is_killed(system: System, model: Path) -> None:
    api = system.api()
    run = api.create_run(name="example", spec={**spec_of(model), "budget": {"train_steps": 1, "target": None}})
    first = Program(api, run["id"])
    first.start()
    api.wait(run["id"], lambda row: bool(first.played) or row["status"] == "failed", 120)
    assert system.process is not None
    [worker] = [one for one in psutil.Process(system.process.pid).children(recursive=True) if plays(one)]
    worker.kill()
    environment = {**os.environ, "FLEXMARL_URL": system.url, "FLEXMARL_TOKEN": api.token, "FLEXMARL_RUN": run["key"]}
    example = subprocess.Popen([sys.executable, ROOT / "examples/programs/solver_and_reviser.py"], env=environment)
    try:
        run = api.finish(run["id"], 300)
        assert run["status"] == "completed", run["reason_text"]
        assert example.wait(30) == 0, "it ends with the run"
    finally:
        example.kill()
        first.ended.set()
        first.join(60)
    assert first.failure is None
    shown = [api.get(f"/runs/{run['id']}/sessions/{session}") for session in first.lost]
    assert {one["state"] for one in shown} <= {"taken", "ended"}, "what was lost earned nothing"
    with psycopg.connect(system.database_url) as conn:
        assert all(check.ok for check in consistency_report(conn, run["no"]))


def plays(process: psutil.Process) -> bool:
    command = process.cmdline()
    return "workers.run" in command and "rollout" in command
