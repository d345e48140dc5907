"""Real harnesses, unmodified, as commands that rollout workers start: workspace, gateway, hidden tests, reward."""

import asyncio
import json
from pathlib import Path

import psycopg
import pytest
import yaml

from flexmarl.language.dataset_rows import DatasetRow, to_line
from flexmarl.language.messages import Message
from tests.support.agent_environments import installed
from tests.support.commanded import Commands
from tests.support.gateway_stand import standing
from tests.support.system import ROOT
from workers.packages.folders import root_of
from workers.rollout.datasets import DatasetLines

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

MINI = yaml.safe_load((ROOT / "examples/programs/mini_swe_agent.yaml").read_text())["environment"]
DIGEST = "a" * 64
ROW = DatasetRow(
    (Message("user", "add(a, b) in main.py shall return the sum."),),
    columns={"code": "def add(a, b):\n    return a - b\n", "check": "from main import add\n\nassert add(2, 3) == 5\n"},
)
READ = "cat main.py"
MEND = "sed -i 's/a - b/a + b/' main.py"
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def bash(command: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"


async def test_mini_swe_agent_mends_a_file_and_hidden_tests_pay_it(
    store_conn: psycopg.Connection, store_url: str, tmp_path: Path
) -> None:
    build = root_of(tmp_path) / DIGEST
    build.mkdir()
    await asyncio.to_thread(installed, "mini-swe-agent.txt", build / "venv")
    async with standing(store_conn, store_url) as stand:
        here = Commands(stand, tmp_path, {"digest": DIGEST})
        here.rows = DatasetLines((to_line(ROW),), (to_line(ROW),))
        here.spec = here.spec.model_copy(update={"tasks": 1, "boot_timeout_s": 120.0, "run_timeout_s": 300.0})
        runner = {**MINI["runner"], "score_timeout_s": 60.0}
        stand.engine.texts = [bash(READ), bash(MEND), bash(DONE), bash(READ), bash(DONE)]
        try:
            played = [await here.play(here.stage(mends=False, **runner)) for _ in range(2)]
            rows = await here.rows_of()
        finally:
            for pool in here.pools:
                await pool.close()
    print(*(row["output"] for row in rows), sep="\n")
    assert [one.reason for one in played] == ["", ""]
    assert [one.outcome.team_score for one in played] == [1.0, 0.0], "the second one left the file as it was"
    assert [len(one.turns) for one in played] == [3, 2]
    assert [one.breaks for one in played] == [{}, {}], "its calls are one chain"
    assert "return a - b" in stand.engine.asked[1].conversation[-1].content, "it read its workspace"
    assert "-    return a - b\n+    return a + b\n" in rows[0]["changes"]["diff"]
    assert [row["changes"]["count"] for row in rows] == [1, 0]
