"""Servers of tools behind URLs: each episode has a session of its own, which is ended however it ends; what hangs,
drops, floods or says garbage is named to the agent or fails the attempt, and nobody is asked whom the operator did not
allow."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from flexmarl.language.messages import ToolCall
from tests.support.tool_endpoint import (
    CUT,
    ToolEndpoint,
    ask_back,
    drop,
    drop_in_stream,
    end_stream,
    endless_event,
    endless_lines,
    flood,
    forget,
    hang,
    refuse,
    says,
    sends,
    tell_key,
    text,
    tool,
)
from workers.external_access import ExternalAccess
from workers.rollout import mcp_client
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.isolation.lines import ToolResult
from workers.rollout.tool_urls import UrlToolPool

pytestmark = pytest.mark.asyncio

COUNT = ToolCall("count")
ACT = ToolCall("act")
SHORT_S = 0.3
SECRET = 'mine "7"'


@pytest_asyncio.fixture(params=[False, True], ids=["json", "stream"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ToolEndpoint]:
    async with ToolEndpoint(streams=request.param) as endpoint:
        yield endpoint


@pytest_asyncio.fixture
async def plain() -> AsyncIterator[ToolEndpoint]:
    async with ToolEndpoint() as endpoint:
        yield endpoint


async def called(pool: UrlToolPool, *calls: ToolCall) -> list[ToolResult]:
    session = await pool.begin()
    try:
        return await session.call(calls)
    finally:
        session.leave()


async def broken(pool: UrlToolPool, *calls: ToolCall) -> str:
    with pytest.raises(EnvironmentBroke) as broke:
        await called(pool, *calls)
    await pool.close()
    return str(broke.value)


async def test_the_tools_that_prompts_can_have_are_listed_once(server: ToolEndpoint) -> None:
    pool = server.pool()
    first, second = await asyncio.gather(pool.tools(), pool.tools())
    assert first == second
    assert [one.name for one in first] == ["add", "count"], "all pages of the list, without a name that no prompt has"
    assert first[0].description == "The tool add."
    assert first[0].parameters["required"] == ["a", "b"]
    await pool.close()
    assert (server.begun, server.ended, server.sessions) == (1, 1, {})


async def test_each_episode_has_a_session_of_its_own_which_is_ended(server: ToolEndpoint) -> None:
    pool = server.pool()
    one, other = await pool.begin(), await pool.begin()
    assert [result.text for result in await one.call([COUNT, COUNT])] == ["1", "2"]
    assert [result.text for result in await other.call([COUNT])] == ["1"]
    assert [result.text for result in await one.call([COUNT])] == ["3"]
    one.leave()
    other.leave()
    await pool.close()
    assert (server.begun, server.ended, server.sessions) == (3, 3, {}), "one for the list, one for each episode"
    headers = [sent for method, sent in server.asked if method in ("tools/call", "DELETE")]
    assert all(sent["Mcp-Session-Id"].startswith("session-") for sent in headers)
    assert {sent["MCP-Protocol-Version"] for sent in headers} == {"2025-06-18"}, "what the server chose"


async def test_a_server_without_sessions_is_called(plain: ToolEndpoint) -> None:
    plain.keeps_sessions = False
    pool = plain.pool()
    assert [one.text for one in await called(pool, ToolCall("add", {"a": 3, "b": 4}))] == ["7"]
    await pool.close()
    assert plain.called("DELETE") == 0


@pytest.mark.parametrize(
    ("answer", "said", "failed"),
    [
        (None, "7", False),
        (says(text("it is not to be had", failed=True)), "it is not to be had", True),
        (says({"content": [], "structuredContent": {"sum": 7}}), '{"sum": 7}', False),
        (
            says({"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}),
            "[image image/png, which cannot be read]",
            False,
        ),
        (refuse, "zone is missing", True),
        (ask_back, "done", False),
    ],
    ids=["text", "error", "structure", "picture", "refused", "asks"],
)
async def test_a_result_is_told_as_text(server: ToolEndpoint, answer: Any, said: str, failed: bool) -> None:
    pool = server.pool()
    server.answers |= {"add": answer} if answer else {}
    assert await called(pool, ToolCall("add", {"a": 3, "b": 4})) == [ToolResult(said, len(said), failed)]
    await pool.close()
    if answer is ask_back:
        told = {one["id"]: one for one in server.said if "method" not in one}
        assert told["mine"]["error"]["message"] == "roots/list is not offered"
        assert told["there"]["result"] == {}


async def test_what_the_server_refuses_is_told_to_the_agent(server: ToolEndpoint) -> None:
    pool = server.pool()
    words = "a and b are integers"
    assert await called(pool, ToolCall("add", {"a": "x"})) == [ToolResult(words, len(words), True)]
    await pool.close()


async def test_a_long_result_is_cut_off(plain: ToolEndpoint) -> None:
    plain.answers["count"] = says(text("x" * 1000))
    pool = plain.pool()
    assert await called(pool, COUNT) == [ToolResult("x" * CUT, 1000, False)]
    await pool.close()


async def test_a_call_that_hangs_is_told_and_the_session_goes_on(plain: ToolEndpoint) -> None:
    plain.answers["add"] = hang
    pool = plain.pool(call_timeout_s=SHORT_S)
    results = await called(pool, COUNT, ToolCall("add"), COUNT)
    assert [(result.text, result.failed) for result in results] == [
        ("1", False),
        ("no answer within 0.3 s", True),
        ("2", False),
    ]
    await pool.close()
    assert plain.called("notifications/cancelled") == 1


async def test_a_server_that_answers_no_ping_either_gets_a_new_session(
    plain: ToolEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_client, "PING_S", SHORT_S)
    plain.answers |= {"add": hang, "ping": hang}
    pool = plain.pool(call_timeout_s=SHORT_S)
    results = await called(pool, COUNT, ToolCall("add"), COUNT)
    assert results[1].text == "no answer within 0.3 s; its session was ended, and a new one began"
    assert results[2].text == "1"
    await pool.close()
    assert (plain.begun, plain.sessions) == (3, {})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (drop, "call: its server closed the connection: ServerDisconnectedError"),
        (drop_in_stream, "call: its server closed the connection: ClientPayloadError"),
        (end_stream, "call: its stream ended without an answer to tools/call"),
        (forget, "call: the server knows its session no more (status 404)"),
        (flood, "call: oversized: more than 4194304 bytes without an answer"),
        (endless_event, "call: oversized: an event of more than 1048576 bytes"),
        (endless_lines, "call: oversized: an event of more than 1048576 bytes"),
        (sends("x" * (2**20 + 1)), "call: oversized: an answer of more than 1048576 bytes"),
        (sends("<html>"), "call: garbage: its answer to tools/call is not a JSON-RPC answer: <html>"),
        (sends("[" * 100_000), "call: garbage: its answer to tools/call is not a JSON-RPC answer: " + "[" * 300),
        (
            sends('{"id": 999, "result": {}}'),
            'call: garbage: its answer to tools/call is not a JSON-RPC answer: {"id": 999, "result": {}}',
        ),
        (
            sends("<html>", kind="text/html"),
            "call: garbage: its answer to tools/call is text/html, neither JSON nor a stream of events",
        ),
        (says(7), "call: garbage: its answer to tools/call is not an object"),
        (says({"content": "seven"}), "call: garbage: the content of a result is not a list of objects"),
        (sends("gone", 503), "call: server_error: status 503: gone"),
        (sends("slowly", 429), "call: rate_limited: status 429: slowly"),
        (sends("not you", 403), "call: refused: status 403: not you"),
        (
            sends("", 307, Location="http://169.254.169.254/"),
            "call: refused: status 307 to http://169.254.169.254/; redirects are not followed, name the URL itself",
        ),
    ],
    ids=[
        "drop", "drop_in_stream", "end_stream", "forget", "flood", "endless_event", "endless_lines", "huge", "html",
        "deep", "other_id", "other_kind", "no_object", "no_list", "down", "busy", "forbidden", "elsewhere",
    ],
)  # fmt: skip
async def test_a_broken_server_fails_its_episode_by_name(plain: ToolEndpoint, answer: Any, reason: str) -> None:
    pool = plain.pool()
    await pool.tools()
    plain.answers["count"] = answer
    assert await broken(pool, COUNT) == reason
    assert plain.sessions == {}, "it was ended nevertheless"
    plain.answers.clear()
    assert [result.text for result in await called(pool, COUNT)] == ["1"], "other episodes go on"
    await pool.close()


@pytest.mark.parametrize(
    ("answers", "settings", "reason"),
    [
        ({"initialize": hang}, {"setup_timeout_s": SHORT_S}, "boot: no answer within 0.3 s"),
        ({"tools/list": hang}, {"setup_timeout_s": SHORT_S}, "boot: no answer within 0.3 s"),
        (
            {"initialize": says({"protocolVersion": "2026-07-28"})},
            {},
            "boot: garbage: it speaks revision 2026-07-28 of the protocol; "
            "spoken are 2025-11-25, 2025-06-18, 2025-03-26",
        ),
        ({"initialize": sends("no such page", 404)}, {}, "boot: refused: status 404: no such page"),
        ({"notifications/initialized": sends("no", 400)}, {}, "boot: refused: status 400: no"),
        ({"tools/list": says({"tools": 7})}, {}, "boot: garbage: its tools are not a list of objects"),
        ({"tools/list": says({"tools": []})}, {}, "boot: it lists no tool that prompts can have"),
        (
            {"tools/list": says({"tools": [], "nextCursor": "more"})},
            {},
            "boot: oversized: its list of tools has more than 32 pages",
        ),
        (
            {"tools/list": says({"tools": [tool(f"t{n}") for n in range(129)]})},
            {},
            "boot: oversized: it lists 129 tools, at most 128 are taken",
        ),
        ({}, {"only": ["now"]}, "boot: it has no tool now, which only names; it has add, count"),
        ({"initialize": refuse}, {}, "boot: it refused a session: zone is missing"),
    ],
)
async def test_a_session_that_does_not_begin_fails_the_episode_by_name(
    plain: ToolEndpoint, answers: Any, settings: Any, reason: str
) -> None:
    plain.answers |= answers
    pool = plain.pool(**settings)
    assert await broken(pool) == reason
    assert plain.sessions == {}, "what it had begun was ended"


async def test_a_server_that_is_not_there_is_named_and_asked_again(plain: ToolEndpoint) -> None:
    pool = plain.pool()
    plain.answers["initialize"] = drop
    assert await broken(pool) == "boot: its server closed the connection: ServerDisconnectedError"
    plain.answers.clear()
    assert [result.text for result in await called(pool, COUNT)] == ["1"], "a failure is not kept"
    await pool.close()
    gone = ToolEndpoint()
    gone.url = "http://127.0.0.1:9/mcp"
    assert await broken(gone.pool()) == "boot: unreachable: ClientConnectorError"


async def test_tools_that_change_fail_episodes_by_name(plain: ToolEndpoint) -> None:
    pool = plain.pool()
    await called(pool, COUNT)
    add, count = plain.listed[:2]
    for listed, what in (
        ([add], "count is gone"),
        ([add, {**count, "description": "Another."}], "count has another description"),
        ([add, tool("count", by={"type": "integer"})], "count has other arguments"),
    ):
        plain.listed = listed
        with pytest.raises(EnvironmentBroke) as broke:
            await called(pool, COUNT)
        assert str(broke.value) == f"boot: its tools changed since the run began: {what}"
    plain.listed = [tool("more"), add, count]
    assert [result.text for result in await called(pool, COUNT)] == ["1"], "one more is shown to nobody"
    await pool.close()
    assert plain.sessions == {}


async def test_what_another_worker_pinned_is_what_agents_are_shown(plain: ToolEndpoint) -> None:
    pool = plain.pool()
    kept: list[str] = []

    async def pin(tools: str) -> str:
        kept.append(tools)
        return kept[0]

    pool.pin = pin
    await pool.tools()
    assert [one["name"] for one in json.loads(kept[0])] == ["add", "count"]
    plain.listed.append(tool("more"))
    late = plain.pool()
    late.pin = pin
    assert [one.name for one in await late.tools()] == ["add", "count"]
    plain.listed = [tool("add")]
    other = plain.pool()
    other.pin = pin
    assert await broken(other) == "boot: its tools changed since the run began: add has other arguments"
    for one in (pool, late):
        await one.close()


async def test_only_hosts_that_the_operator_names_are_asked(plain: ToolEndpoint) -> None:
    pool = plain.pool(ExternalAccess(frozenset({"tools.example.org"})))
    reason = await broken(pool)
    assert reason == f"boot: host_not_allowed: {plain.host} is not among FLEXMARL_EXTERNAL_HOSTS of the rollout worker"
    assert plain.asked == []


async def test_a_secret_is_sent_and_never_repeated() -> None:
    async with ToolEndpoint(key=SECRET) as server:
        hosts = frozenset({server.host})
        pool = server.pool(ExternalAccess(hosts, {"TOOLS_KEY": SECRET}), secret="TOOLS_KEY")
        server.answers["add"] = tell_key
        [told] = await called(pool, ToolCall("add"))
        assert told.text == "Bearer [secret]"
        await pool.close()
        assert server.sessions == {}, "the end of a session is proved as well"
        wrong = server.pool(ExternalAccess(hosts, {"TOOLS_KEY": "other"}), secret="TOOLS_KEY")
        assert await broken(wrong) == "boot: refused: status 401: Bearer [secret] is none of ours"
        missing = server.pool(ExternalAccess(hosts), secret="TOOLS_KEY")
        reason = "boot: secret_missing: FLEXMARL_EXTERNAL_SECRET_TOOLS_KEY is not set on the rollout worker"
        assert await broken(missing) == reason


async def test_no_proxy_of_the_environment_is_used(plain: ToolEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    pool = plain.pool()
    assert [result.text for result in await called(pool, COUNT)] == ["1"]
    await pool.close()


async def test_an_episode_that_is_cancelled_leaves_no_session(plain: ToolEndpoint) -> None:
    pool = plain.pool()
    await pool.tools()
    plain.answers |= {"count": hang, "tools/list": hang}
    begun = plain.called("tools/list")
    task = asyncio.create_task(called(pool, COUNT))
    while plain.called("tools/list") == begun:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    del plain.answers["tools/list"]
    task = asyncio.create_task(called(pool, COUNT))
    while not plain.called("tools/call"):
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    await pool.close()
    assert (plain.begun, plain.sessions) == (3, {})


async def test_a_session_that_cannot_be_ended_costs_no_episode(plain: ToolEndpoint) -> None:
    pool = plain.pool(close_timeout_s=SHORT_S)
    for answer in (hang, drop, sends("", 405), sends("", 500)):
        plain.answers["DELETE"] = answer
        assert [result.text for result in await called(pool, COUNT)] == ["1"]
    await pool.close()
