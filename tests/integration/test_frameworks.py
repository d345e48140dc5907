"""Real frameworks, unmodified, as agent programs: each plays sessions with a call of a tool through the real gateway.

They are the programs of examples/programs, in environments of their own; tokens are scripted.
"""

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flexmarl.contracts.wire import EpisodeStatus
from tests.support.forms import form
from tests.support.gateway_stand import CALL, Stand, standing
from tests.support.system import ROOT

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(400)]

CODE = ("I add.\n<code>\nprint(add(2, 3))\n</code>", "<code>\nfinal_answer(5)\n</code>")
FINAL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "5"}}\n</tool_call>'


@dataclass(frozen=True)
class Framework:
    """A framework: its example, what its agent says in a session, and whether its calls are one chain."""

    example: str
    sessions: dict[tuple[str, ...], tuple[str, ...]]
    """Options of the example -> what its agent says."""
    one_chain: bool = True


FRAMEWORKS = {
    "openai-agents": Framework("with_openai_agents.py", {(): (CALL, "5"), ("--chat", "--stream"): (CALL, "5")}),
    "langgraph": Framework("with_langgraph.py", {(): (CALL, "5"), ("--responses", "--stream"): (CALL, "5")}),
    "pydantic-ai": Framework("with_pydantic_ai.py", {("--chat",): (CALL, "5"), ("--stream",): (CALL, "5")}),
    "smolagents": Framework("with_smolagents.py", {(): CODE, ("--tools", "--stream"): (CALL, FINAL)}, one_chain=False),
}
"""Requirements of requirements/programs -> what is played with them."""


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


@pytest.fixture(scope="module", params=form(short=["pydantic-ai"], full=list(FRAMEWORKS)))
def framework(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Framework, Path]:
    """Return a framework and the interpreter of an environment that has it."""
    folder = tmp_path_factory.mktemp(request.param)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    requirements = ROOT / f"requirements/programs/{request.param}.txt"
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--no-compile", "--no-deps"]
    done = subprocess.run([*pip, "-r", requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{request.param} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return FRAMEWORKS[request.param], folder / "bin/python"


async def last_word(python: Path, example: str, options: tuple[str, ...], session: dict[str, Any]) -> str:
    """Play a session; returns the end of what was printed: some frameworks print what they do."""
    command = [python, ROOT / "examples/programs" / example, *options]
    program = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={})
    try:
        said, trouble = await program.communicate(json.dumps(session).encode())
    finally:
        if program.returncode is None:
            program.kill()
    assert program.returncode == 0, trouble.decode()
    return said.decode().split()[-1]


@pytest.mark.parametrize("place", [0, 1])
async def test_a_framework_plays_a_session(framework: tuple[Framework, Path], stand: Stand, place: int) -> None:
    program, python = framework
    [options, texts] = list(program.sessions.items())[place]
    stand.engine.texts = list(texts)
    await stand.begin(run_timeout_s=200)
    session = {"base_url": f"{stand.url}/v1", "key": stand.key}
    assert await last_word(python, program.example, options, session) == "5"
    attempt = await stand.finished(reward=1)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert len(attempt.turns) == 2
    *_, said, result = stand.engine.asked[1].conversation
    assert (said.role, "5" in result.content) == ("assistant", True), "what the tool answered was read"
    assert attempt.breaks == ({} if program.one_chain else {"other_history": [("solver", 1)]})
