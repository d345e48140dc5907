"""Real servers of the package index, as docs/tools.md names them: built, and called in a session per episode."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flexmarl.contracts.specification.tools import McpServer, PinnedServer
from flexmarl.language.messages import ToolCall
from workers.packages.building import BuildOrder
from workers.packages.running import run_build
from workers.rollout.packages import Builds
from workers.rollout.tool_servers import ToolPool

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

TOLD = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
WRITTEN, _ = re.findall(r"```yaml\n(.*?)```", TOLD, re.DOTALL)
SERVERS = {one["package"]: one for one in yaml.safe_load(WRITTEN)["environment"]["tools"]["servers"]}
CALLS = {
    "mcp-server-calculator": (ToolCall("calculate", {"expression": "2 + 3 * 4"}), "14"),
    "mcp-server-time": (ToolCall("get_current_time", {"timezone": "Europe/Berlin"}), '"timezone": "Europe/Berlin"'),
}
"""What each is asked, and what its answer has."""
HANGS = ToolCall("calculate", {"expression": "9 ** 9 ** 9"})


async def _went_on(now: str, log: str) -> bool:
    return True


async def _no_store(call: Any) -> Any:
    raise AssertionError("the build is here")


@pytest.mark.parametrize("package", SERVERS)
async def test_a_real_server_is_built_and_called(package: str, tmp_path: Path) -> None:
    name, _, version = package.partition("@")
    said = await run_build(tmp_path, BuildOrder(name, f"{name}=={version}"), tmp_path / "log", _went_on)
    if said.get("code") == "index_unreachable":
        pytest.skip("the package index cannot be reached")
    assert "digest" in said, said
    [offer] = said["manifest"]["servers"]
    pinned = PinnedServer(id="1", digest=said["digest"], entry=offer["entry"], tools=offer["tools"])
    short = {"call_timeout_s": 10.0}
    spec = McpServer.model_validate({**SERVERS[package], "server": offer["name"], "pinned": pinned, **short})
    assert set(spec.only) <= {tool["name"] for tool in offer["tools"]}
    pool, (call, wanted) = ToolPool(spec, Builds(tmp_path, _no_store), 4000), CALLS[name]
    for _ in range(2):
        session = await pool.begin()
        [result, unknown] = await session.call([call, ToolCall("no_such_tool")])
        assert not result.failed
        assert wanted in result.text
        assert unknown.failed
        assert "no_such_tool" in unknown.text
        session.leave()
    if name == "mcp-server-calculator":
        session = await pool.begin()
        [hung, result] = await session.call([HANGS, call])
        assert hung.text.startswith("no answer within 10 s")
        assert result.text == wanted
        session.leave()
    await pool.close()
