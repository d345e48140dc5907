"""The server that docs/tools.md names, of the protocol's official SDK and in a process of its own, asked over
streamable HTTP: one session for each episode, each with its own state."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from flexmarl.contracts.specification.tools import McpUrl
from flexmarl.language.messages import ToolCall
from tests.support.engines import VLLM_PYTHON, needs_vllm
from workers.external_access import ExternalAccess
from workers.rollout import mcp_client
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.tool_urls import UrlToolPool

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, needs_vllm]

TOLD = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
[WRITTEN] = re.findall(r"```python\n(.*?)```", TOLD, re.DOTALL)
MORE = '''
import asyncio

from mcp.types import ImageContent


@server.tool()
async def rest(seconds: float) -> str:
    """Rest."""
    await asyncio.sleep(seconds)
    return "rested"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it is not to be had")


@server.tool()
def picture() -> ImageContent:
    """Draw."""
    return ImageContent(type="image", data="AAAA", mime_type="image/png")


@server.tool()
def move(x: int, y: int) -> dict[str, int]:
    """Move."""
    return {"x": x, "y": y}
'''
"""Tools beside those of the document: what real servers do with time, errors, pictures and structure."""
COUNT = ToolCall("count")
LONG_S = 60.0


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the server, whose SDK the environment of vLLM has."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    program = dedent(WRITTEN).replace("8765", str(number)).replace('if __name__ == "__main__":', f"{MORE}\nif True:")
    folder = tmp_path_factory.mktemp("server")
    (folder / "counting.py").write_text(program)
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([VLLM_PYTHON, "-I", folder / "counting.py"], stderr=log) as server,
    ):
        until = time.monotonic() + LONG_S
        while not _listens(number):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, "it does not listen"
            time.sleep(0.1)
        yield number
        server.terminate()


def _listens(number: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", number)) == 0


def pool_of(port: int, call_timeout_s: float = LONG_S) -> UrlToolPool:
    async def pin(tools: str) -> str:
        return tools

    spec = McpUrl(url=f"http://127.0.0.1:{port}/mcp", setup_timeout_s=LONG_S, call_timeout_s=call_timeout_s)
    return UrlToolPool(spec, ExternalAccess(frozenset({f"127.0.0.1:{port}"})), pin, 4000)


async def test_each_episode_has_one_session_with_a_state_of_its_own(port: int) -> None:
    pool = pool_of(port)
    tools = {one.name: one for one in await pool.tools()}
    assert set(tools) == {"count", "rest", "fail", "picture", "move"}
    assert tools["count"].description == "Say how often this was called in this session."
    assert tools["move"].parameters["required"] == ["x", "y"]
    one, other = await pool.begin(), await pool.begin()
    assert [result.text for result in await one.call([COUNT, COUNT])] == ["1", "2"]
    assert [result.text for result in await other.call([COUNT])] == ["1"]
    assert [result.text for result in await one.call([COUNT])] == ["3"]
    one.leave()
    other.leave()
    await pool.close()


async def test_a_session_that_was_ended_is_known_no_more(port: int) -> None:
    pool = pool_of(port)
    session = await pool.begin()
    await session.call([COUNT])
    await session.client.close()
    with pytest.raises(EnvironmentBroke) as broke:
        await session.call([COUNT])
    assert str(broke.value) == "call: the server knows its session no more (status 404)"
    await pool.close()


async def test_what_real_tools_say_is_told_as_text(port: int) -> None:
    pool = pool_of(port)
    session = await pool.begin()
    calls = [
        ToolCall("fail"), ToolCall("move", {"x": 1}), ToolCall("move", {"x": 1, "y": 2}), ToolCall("picture"),
        ToolCall("no_such_tool"),
    ]  # fmt: skip
    failed, unlike, moved, picture, unknown = await session.call(calls)
    assert [one.failed for one in (failed, unlike, moved, picture, unknown)] == [True, True, False, False, True]
    assert "fail" in failed.text
    assert '"y": 2' in moved.text
    assert picture.text == "[image image/png, which cannot be read]"
    session.leave()
    await pool.close()


async def test_a_session_goes_on_after_a_call_that_takes_too_long(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_client, "PING_S", LONG_S)
    pool, hasty = pool_of(port), pool_of(port, call_timeout_s=0.5)
    session = await pool.begin()
    assert [result.text for result in await session.call([COUNT])] == ["1"]
    session.pool = hasty
    [late] = await session.call([ToolCall("rest", {"seconds": 600})])
    assert (late.text, late.failed) == ("no answer within 0.5 s", True)
    session.pool = pool
    assert [result.text for result in await session.call([COUNT])] == ["2"]
    session.leave()
    await pool.close()
    await hasty.close()
