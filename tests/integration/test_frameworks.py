"""Real frameworks, unmodified, as agent programs: each plays sessions with a call of a tool through the real gateway.

They are the programs of examples/programs, in environments of their own; tokens are scripted.
"""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from flexmarl.contracts.wire import EpisodeStatus
from tests.support.agent_environments import Installed, installed
from tests.support.forms import form
from tests.support.gateway_stand import CALL, Stand, standing
from tests.support.system import ROOT

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(400)]

ADDS = (CALL, "5")
SAYS_AND_ADDS = (f"I add.\n{CALL}", "5")
CODE = ("I add.\n<code>\nprint(add(2, 3))\n</code>", "<code>\nfinal_answer(5)\n</code>")


def call(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Framework:
    """A framework: its example, and what its agent says in a session."""

    example: str
    sessions: dict[tuple[str, ...], tuple[str, ...]]
    """Options of the example -> what its agent says."""
    apart: tuple[tuple[str, ...], ...] = ()
    """Options of sessions in which it does not say again what its agent said, so that a call begins a chain."""


FRAMEWORKS = {
    "openai-agents.txt": Framework("with_openai_agents.py", {(): ADDS, ("--chat", "--stream"): ADDS}),
    "langgraph.txt": Framework("with_langgraph.py", {(): ADDS, ("--responses", "--stream"): ADDS}),
    "autogen.txt": Framework("with_autogen.py", {(): ADDS, ("--stream",): SAYS_AND_ADDS}),
    "crewai.txt": Framework("with_crewai.py", {(): SAYS_AND_ADDS, ("--responses",): ADDS}, apart=((),)),
    "pydantic-ai.txt": Framework("with_pydantic_ai.py", {("--chat",): ADDS, ("--stream",): ADDS}),
    "smolagents.txt": Framework(
        "with_smolagents.py",
        {(): CODE, ("--tools", "--stream"): (CALL, call("final_answer", answer="5"))},
        apart=((), ("--tools", "--stream")),
    ),
    "codex.json": Framework("with_codex.py", {(): (call("exec_command", cmd="echo $((2+3))"), "5")}),
    "claude-code.json": Framework("with_claude_code.py", {(): (call("Bash", command="echo $((2+3))"), "5")}),
    "opencode.json": Framework("with_opencode.py", {(): (f"I ask it.\n{call('bash', command='echo $((2+3))')}", "5")}),
}
"""File of requirements/programs -> what is played with it."""
TEAMS = {"autogen.txt": ("--team", "--stream"), "crewai.txt": ("--team", "--stream")}
"""Frameworks whose example is also a team of two seats -> its options then."""
PLAYED = [
    (name, options)
    for name in form(short=["pydantic-ai.txt"], full=list(FRAMEWORKS))
    for options in FRAMEWORKS[name].sessions
]


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Installed]]:
    """Install frameworks into folders of their own, once each."""
    home = tmp_path_factory.mktemp("frameworks")
    yield cache(lambda name: installed(name, home / name))
    shutil.rmtree(home)  # some are of hundreds of megabytes


async def last_word(program: Installed, example: str, options: tuple[str, ...], session: dict[str, Any]) -> str:
    """Play a session; returns the end of what was printed: some frameworks print what they do."""
    command = [program.python, ROOT / "examples/programs" / example, *options]
    with TemporaryDirectory() as home:  # some keep files there
        there = {"PATH": f"{program.commands}:{os.environ['PATH']}", "HOME": home}
        running = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=there)
        try:
            said, trouble = await running.communicate(json.dumps(session).encode())
        finally:
            if running.returncode is None:
                running.kill()
    assert running.returncode == 0, trouble.decode()
    return said.decode().split()[-1]


@pytest.mark.parametrize(("name", "options"), PLAYED, ids=str)
async def test_a_framework_plays_a_session(
    install: Callable[[str], Installed], stand: Stand, name: str, options: tuple[str, ...]
) -> None:
    framework = FRAMEWORKS[name]
    program = await asyncio.to_thread(install, name)
    stand.engine.texts = list(framework.sessions[options])
    await stand.begin(run_timeout_s=200)
    session = {"base_url": f"{stand.url}/v1", "key": stand.key}
    assert await last_word(program, framework.example, options, session) == "5"
    attempt = await stand.finished(reward=1)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert len(attempt.turns) == 2
    *_, said, result = stand.engine.asked[1].conversation
    assert (said.role, "5" in result.content) == ("assistant", True), "what the tool answered was read"
    assert attempt.breaks == ({"other_history": [("solver", 1)]} if options in framework.apart else {})


@pytest.mark.full
@pytest.mark.parametrize("name", TEAMS)
async def test_a_team_plays_with_a_seat_for_each_agent(
    install: Callable[[str], Installed], stand: Stand, name: str
) -> None:
    program = await asyncio.to_thread(install, name)
    stand.engine.texts = [CALL, "It is 6.", "5"]
    await stand.begin(run_timeout_s=200)
    session = {"base_url": f"{stand.url}/v1", "key": stand.key}
    assert await last_word(program, FRAMEWORKS[name].example, TEAMS[name], session) == "5"
    attempt = await stand.finished(rewards={"solver": 0, "reviser": 1})
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert [asked.role for asked in stand.engine.asked] == ["solver", "solver", "reviser"]
    assert "It is 6." in stand.engine.asked[2].conversation[-1].content, "the reviser read what the solver said"
    assert attempt.breaks == {}, "each seat's calls are one chain"
    assert attempt.outcome is not None
    assert attempt.outcome.scores == {"solver": 0, "reviser": 1}
