"""Servers of tools that are packages: each episode has a session of its own, and what hangs, dies or floods is named to
the agent or fails the attempt."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from flexmarl.contracts.specification.tools import McpServer, PinnedServer
from flexmarl.language.messages import ToolCall
from tests.support.builds import no_store, went_on
from tests.support.tool_files import tools_wheel
from workers.packages.building import BuildOrder
from workers.packages.running import run_build
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.isolation.lines import ToolResult
from workers.rollout.packages import Builds
from workers.rollout.tool_servers import ToolPool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SHORT_S = 1.0
CUT = 100


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built(home: Path) -> dict[str, Any]:
    """The one build that the tests share."""
    name, body = tools_wheel()
    (home / name).write_bytes(body)
    return await run_build(home, BuildOrder("mcp-tools", "", str(home / name)), home / "log", went_on)


def pool_of(home: Path, built: dict[str, Any], **settings: Any) -> ToolPool:
    [offer] = built["manifest"]["servers"]
    tools = offer["tools"]
    pinned = PinnedServer(id="1", digest=built["digest"], entry=offer["entry"], tools=tools)
    spec = McpServer(package="mcp-tools@1.0", server=offer["name"], memory_mb=512, pinned=pinned, **settings)
    return ToolPool(spec, Builds(home, no_store), CUT)


@pytest_asyncio.fixture(loop_scope="module")
async def pool(home: Path, built: dict[str, Any]) -> AsyncIterator[ToolPool]:
    made = pool_of(home, built)
    yield made
    await made.close()


async def called(pool: ToolPool, *calls: ToolCall) -> list[ToolResult]:
    session = await pool.begin()
    try:
        return await session.call(calls)
    finally:
        session.leave()


def act(what: str) -> ToolCall:
    return ToolCall("act", {"what": what})


async def test_a_build_lists_the_tools_of_its_servers_and_why_others_are_left_out(built: dict[str, Any]) -> None:
    manifest = built["manifest"]
    [server] = manifest["servers"]
    assert (server["name"], server["entry"], server["title"]) == ("mcp-tools", "mcp_tools:main", "tools 1.0")
    assert [tool["name"] for tool in server["tools"]] == ["add", "count", "act"], "all pages of the list"
    assert server["tools"][0]["description"] == "The tool add."
    assert server["tools"][0]["parameters"]["required"] == ["a", "b"]
    assert manifest["environments"] == []
    reasons = {one["name"]: one["reason"] for one in manifest["left_out"]}
    assert reasons["mcp-broken"] == "its server ended with code 1: usage: broken --folder FOLDER"
    assert "has a blank" in "".join(reasons), "a name that no prompt can have"


async def test_each_episode_has_a_session_of_its_own(pool: ToolPool) -> None:
    count = ToolCall("count")
    one, other = await pool.begin(), await pool.begin()
    assert [result.text for result in await one.call([count, count])] == ["1", "2"]
    assert [result.text for result in await other.call([count])] == ["1"]
    assert [result.text for result in await one.call([count])] == ["3"]
    one.leave()
    other.leave()
    assert [result.text for result in await called(pool, count)] == ["1"], "also of one that was let go of"


@pytest.mark.parametrize(
    ("call", "text", "failed"),
    [
        (ToolCall("add", {"a": 3, "b": 4}), "7", False),
        (ToolCall("add", {"a": "x"}), "a and b are integers", True),
        (act("fail"), "it is not to be had", True),
        (act("chatter"), "done", False),
        (act("log"), "done", False),
        (act("structure"), '{"sum": 7}', False),
        (act("picture"), "[image image/png, which cannot be read]", False),
        (act("ask"), "roots/list is not offered", False),
    ],
    ids=str,
)
async def test_a_result_is_told_as_text(pool: ToolPool, call: ToolCall, text: str, failed: bool) -> None:
    assert await called(pool, call) == [ToolResult(text, len(text), failed)]


async def test_a_long_result_is_cut_off(pool: ToolPool) -> None:
    assert await called(pool, act("large")) == [ToolResult("x" * CUT, 1000, False)]


async def test_a_call_that_hangs_is_told_and_the_session_begins_anew(home: Path, built: dict[str, Any]) -> None:
    pool = pool_of(home, built, call_timeout_s=SHORT_S)
    session = await pool.begin()
    count = ToolCall("count")
    results = await session.call([count, act("hang"), count])
    assert [result.failed for result in results] == [False, True, False]
    assert results[1].text == "no answer within 1 s; its session was ended, and a new one began"
    assert results[2].text == "1"
    session.leave()
    await pool.close()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("die", "call: its server ended with code 3: no disk is left"),
        ("endless_line", "call: oversized: a line of more than 1048576 bytes"),
        ("huge", "call: oversized: a line of more than 1048576 bytes"),
        ("flood", "call: oversized: more than 4194304 bytes without an answer"),
        ("no_object", "call: garbage: its answer to tools/call is not an object"),
        ("no_list", "call: garbage: the content of a result is not a list of objects"),
    ],
)
async def test_a_broken_server_fails_its_episode_by_name(pool: ToolPool, what: str, reason: str) -> None:
    with pytest.raises(EnvironmentBroke) as broke:
        await called(pool, act(what))
    assert str(broke.value) == reason
    assert [result.text for result in await called(pool, ToolCall("count"))] == ["1"], "other episodes go on"


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--die", "boot: its server ended with code 1: usage: tools --folder FOLDER"),
        ("--hang", "boot: it did not begin a session within 1 s"),
    ],
)
async def test_a_server_that_does_not_begin_fails_its_episode_by_name(
    home: Path, built: dict[str, Any], argument: str, reason: str
) -> None:
    pool = pool_of(home, built, arguments=(argument,), setup_timeout_s=SHORT_S)
    with pytest.raises(EnvironmentBroke) as broke:
        await pool.begin()
    assert str(broke.value) == reason
    await pool.close()


async def test_no_process_outlives_its_episode(home: Path, built: dict[str, Any]) -> None:
    pool = pool_of(home, built, call_timeout_s=60.0)
    session = await pool.begin()
    assert pool._host is not None
    host = psutil.Process(pool._host.process.pid)
    hanging = asyncio.create_task(session.call([act("hang")]))
    await asyncio.sleep(0.3)
    mine = {one.pid for one in host.children(recursive=True)}
    hanging.cancel()
    session.leave()
    whole = await pool.begin()
    left = {one.pid for one in host.children(recursive=True)}
    assert len(mine) >= 2
    whole.leave()
    for _ in range(1200):
        if len({one.pid for one in host.children(recursive=True)} & mine) <= 1:  # the host's own inner process
            break
        await asyncio.sleep(0.05)
    assert len({one.pid for one in host.children(recursive=True)} & mine) <= 1, (mine, left)
    await pool.close()
    assert psutil.wait_procs([host], 60)[1] == [], "whoever reaps it first, it ends"


async def test_a_server_sees_no_network_no_credentials_and_no_home(
    pool: ToolPool, built: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if built["manifest"]["sandbox"] != "namespaces":
        pytest.skip("this kernel allows no name spaces")
    monkeypatch.setenv("FLEXMARL_SECRET", "open sesame")
    network, listed = await called(pool, act("network"), act("list"))
    assert network.failed
    assert "FLEXMARL_SECRET" not in listed.text
    assert "home" not in listed.text.split()
