"""Agent programs under random SIGKILLs of gateway, engine, driver and the programs themselves.

A run plays sessions of a command, a process each. What a program heard is what the rows of its session's episode say,
call by call; a session that was broken off leaves neither rows nor processes; no kill costs an episode. The full form
strikes 200 times over at least 500 sessions:

    ./scripts/test --full tests/chaos/test_program_kills.py -n 0 -q -s
"""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.support.chaos import Chaos, Kind, patient
from tests.support.chat_templates import small_chat_model
from tests.support.counting import assert_accounted
from tests.support.forms import FULL, form
from tests.support.machine import wait_for
from tests.support.system import Api, System

KILLS = form(short=4, full=200)
SESSIONS = form(short=12, full=500)
"""That were opened at least, when the strikes end."""
pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(max(900, 60 * KILLS))]

SEED = int(os.environ.get("FLEXMARL_CHAOS_SEED", "5"))
STRUCK = (Kind.ROLLOUT, Kind.ENGINE, Kind.DRIVER)
"""The gateway is in the rollout worker. Beside them a program is struck."""
CALLS = 3
MARK = "flexmarl-chaos-program"
CODE = f"""
import json, os, time, urllib.request
mark, said, messages = "{MARK}", [], []
for turn in range({CALLS}):
    messages.append(dict(role="user", content=f"What is {{turn}}+1?"))
    body = json.dumps(dict(model="solver", messages=messages)).encode()
    ask = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    ask.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    with urllib.request.urlopen(ask, timeout=300) as answer:
        said.append(json.load(answer)["choices"][0]["message"]["content"])
    messages.append(dict(role="assistant", content=said[-1]))
    time.sleep(0.2)
print(json.dumps(said), flush=True)
json.dump(sum(map(len, said)) % 7 / 7, open("reward.json", "w"))
"""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def spec_of(model: Path) -> dict[str, Any]:
    return {
        "environment": {
            "type": "program", "seats": ["solver"], "reply_tokens": 6, "boot_timeout_s": 120, "run_timeout_s": 300,
            "runner": {"type": "command", "command": ["python3", "-c", CODE]},
        },
        "agents": {"solver": {}},
        "policies": {
            "solver": {
                "model": {"type": "folder", "path": str(model)},
                "tuning": {"type": "lora", "rank": 4, "alpha": 8},
                "precision": "fp32",
            }
        },
        "batch": {
            "tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2,
            "max_attempts": 10,
        },
        "algorithm": {"advantage": {"type": "reinforce"}},
        "budget": {"train_steps": 100_000, "target": None},
        "evaluation": {"every_steps": 100_000, "tasks": 2},
    }  # fmt: skip


def programs() -> list[psutil.Process]:
    """Return the programs of this test that are alive, the innermost process of each sandbox."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[:2] == ["python3", "-c"] and MARK in words[-1]:
            found.append(process)
    return found


def strike_program(chances: random.Random) -> None:
    """Kill a program in the middle of its session."""
    victim = wait_for(lambda: chances.choice(alive) if (alive := programs()) else None, 120)
    try:
        victim.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        strike_program(chances)


def opened(api: Api, run: dict[str, Any], system: System) -> int:
    with psycopg.connect(system.database_url) as conn:
        row = conn.execute("SELECT count(*) FROM store.program_session WHERE run_id = %s", [run["no"]]).fetchone()
    return int(row[0]) if row else 0


def test_kills_lose_no_call_and_double_none(system: System, tmp_path: Path) -> None:
    api, chances = system.api(), random.Random(SEED)
    run = api.create_run(name="programs-struck", spec=spec_of(small_chat_model(tmp_path / "model")))
    api.wait(run["id"], lambda one: one["step"] >= 1, 300)
    chaos = Chaos(system, run["no"], SEED)
    deck: list[Kind | None] = []
    for _ in range(KILLS):
        if not deck:
            deck = chances.sample([*STRUCK, None], 4)
        kind = deck.pop()
        if kind is None:
            strike_program(chances)
            time.sleep(chances.uniform(0.5, 2.0))
        else:
            strike = chaos.strike(kind)
            print(f"{strike.at:6.1f} s  step {strike.step:4}  {strike.recovered_s:5.2f} s  {kind}", flush=True)
            time.sleep(chances.uniform(0.5, 2.0))
    wait_for(lambda: patient(lambda: opened(api, run, system)) >= SESSIONS, 3600 if FULL else 300)
    patient(lambda: api.act(run["id"], "stop"))
    run = patient(lambda: api.finish(run["id"], 300))
    assert run["status"] == "stopped", run["reason_text"]
    wait_for(lambda: not programs(), 60)
    found = patient(lambda: api.consistency(run["id"]))
    assert found["ok"], [check for check in found["checks"] if not check["ok"]]
    progress = run["progress"]
    assert progress["episodes_failed"] == 0, "no kill costs an episode"
    with psycopg.connect(system.database_url) as conn:
        assert_accounted(conn, run["no"])
        assert_heard_is_recorded(conn, api, run, chances)


def assert_heard_is_recorded(conn: psycopg.Connection, api: Api, run: dict[str, Any], chances: random.Random) -> None:
    """Compare what programs heard with the rows of the episodes that their sessions became."""
    live = wait_for(lambda: not api.get(f"/runs/{run['id']}/sessions?live=yes")["results"], 60)
    assert live, "sessions of a killed worker end as it falls silent"
    rows = conn.execute(
        "SELECT e.draw, e.member, e.attempt, e.turns, array_agg(s.calls), array_agg(s.output) FROM store.episode e "
        "LEFT JOIN store.program_session s USING (run_id, draw, member, attempt) "
        "WHERE e.run_id = %s AND e.status = 'finished' AND s.state = 'finished' GROUP BY 1, 2, 3, 4",
        [run["no"]],
    ).fetchall()
    finished = conn.execute(
        "SELECT count(*) FROM store.episode WHERE run_id = %s AND status = 'finished'", [run["no"]]
    ).fetchone()
    assert finished == (len(rows),), "each episode is of one finished session"
    assert {(turns, tuple(calls)) for *_, turns, calls, _ in rows} == {(CALLS, (CALLS,))}
    for draw, member, attempt, _, _, (output,) in chances.sample(rows, min(len(rows), 60)):
        heard = json.loads(output.strip().splitlines()[-1])
        told = api.get(f"/runs/{run['id']}/trajectories/{draw}-{member}-{attempt}")["turns"]
        assert [words(turn["response_text"]) for turn in told] == [words(text) for text in heard]


def words(text: str) -> str:
    """Return a text without special tokens, which a model that knows nothing draws too; pages leave out some."""
    return re.sub(r"<\|im_(start|end)\|>", "", text).strip()
