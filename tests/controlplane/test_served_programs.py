"""Real agent programs, unmodified, ask finished agents as they asked those of sessions: base URL and key are others.

They are the programs of examples/programs, in environments of their own, at a real web process; tokens are scripted.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.playground import keys
from flexmarl.controlplane.playground.models import ServingCall, ServingDay
from flexmarl.launcher.processes import wait_until
from tests.controlplane.test_disconnects import server
from tests.integration.test_frameworks import ADDS, call
from tests.support.agent_environments import Installed, installed
from tests.support.chat_templates import QWEN3
from tests.support.played import play
from tests.support.playground_stage import SHARED, Stage
from tests.support.system import ROOT
from tests.support.talking_engine import TalkingEngine, serving

__all__ = ["server"]
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(900),
]
SHELL = (call("Bash", command="echo $((2+3))"), "5")
OPENCODE = (call("bash", command="echo $((2+3))"), "5")
CODEX = (call("exec_command", cmd="echo $((2+3))"), "5")


@pytest.fixture
def stage(editor, make_run) -> Iterator[Stage]:
    run = make_run(editor, RunStatus.RUNNING, agents=SHARED)
    played = play(run)
    solver = run.spec["agents"].pop("speaker")
    run.spec["agents"]["solver"] = {**solver, "sampling": {**solver["sampling"], "max_tokens": 512}}
    run.save(update_fields=["spec"])
    with serving(TalkingEngine(parts=True)) as engine:
        found = Stage(run, played, engine, None, f"{run.key}/solver")
        found.live(1)
        found.speaks(QWEN3)
        yield found


PROGRAMS: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = [
    ("openai-agents.txt", "with_openai_agents.py", (), ADDS),
    ("openai-agents.txt", "with_openai_agents.py", ("--chat", "--stream"), ADDS),
    ("claude-code.json", "with_claude_code.py", (), SHELL),
    ("codex.json", "with_codex.py", (), CODEX),
    ("langgraph.txt", "with_langgraph.py", (), ADDS),
    ("autogen.txt", "with_autogen.py", ("--stream",), ADDS),
    ("crewai.txt", "with_crewai.py", (), ADDS),
    ("opencode.json", "with_opencode.py", (), OPENCODE),
]
"""What a program needs, the program, its options, and what its agent says."""


def test_programs_of_sessions_ask_a_finished_agent(server, stage, person, tmp_path: Path) -> None:
    boss = actor_of_user(person(ProjectRole.ADMIN, "boss"))
    key, text = keys.create(boss, "default", "app", 60, 1_000_000, (f"{stage.name}@1",))
    install = cache(lambda name: installed(name, tmp_path / name))
    read = 0
    for calls, (requirements, example, options, texts) in enumerate(PROGRAMS, 1):
        stage.engine.asked.clear()
        stage.will_say(*texts)
        session = {"base_url": f"{server}/v1", "key": text}
        assert last_word(install(requirements), example, options, session, tmp_path) == "5"
        first, second = stage.prompts()
        assert "<tool_response>" not in first, example
        assert "5" in second.rpartition("<tool_response>")[2], "what the tool answered was read"
        assert wait_until(lambda: not ServingCall.objects.exists(), 60)
        day = ServingDay.objects.get(key=key)
        read += sum(len(asked["prompt"][0]) for asked in stage.engine.asked)
        assert (day.requests, day.refused, day.prompt_tokens) == (2 * calls, 0, read), example


def last_word(program: Installed, example: str, options: tuple[str, ...], session: dict[str, str], home: Path) -> str:
    command = [program.python, ROOT / "examples/programs" / example, *options]
    there = {"PATH": f"{program.commands}:{os.environ['PATH']}", "HOME": str(home)}
    done = subprocess.run(command, input=json.dumps(session).encode(), capture_output=True, env=there, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()[-1]
