"""Clients and models that misbehave in a session: each ends in a named state, and others do not feel it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import openai
import psycopg
import pytest

from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.language.renderer import LONG
from tests.support.chat_templates import renderer
from tests.support.gateway_stand import Stand, standing
from workers.rollout.gateway.sessions import MOST_CHARACTERS, NO_CALL

pytestmark = pytest.mark.services

USER = {"role": "user", "content": "2+3?"}


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


async def asked(stand: Stand, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a call over a connection of its own, and read nothing."""
    place, text = urlsplit(stand.url), json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**12)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stand.key}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
    await writer.drain()
    return reader, writer


async def chat(client: openai.AsyncOpenAI, *messages: dict[str, Any], **more: Any) -> Any:
    return await client.chat.completions.create(model="solver", messages=list(messages), **more)


async def turns(stand: Stand, count: int) -> None:
    while len(stand.engine.asked) < count:
        await asyncio.sleep(0.02)


async def test_a_client_that_stops_reading_holds_up_nobody(stand: Stand) -> None:
    client = await stand.begin(reply_tokens=16_000)
    stand.engine.texts = ["so long " * 500_000]  # far more than a connection takes that nobody reads
    _, writer = await asked(stand, {"model": "solver", "messages": [USER], "stream": True})
    await turns(stand, 1)
    answer = await asyncio.wait_for(chat(client, USER, {"role": "assistant", "content": "x"}, USER), 30)
    assert answer.choices[0].message.content
    attempt = await stand.finished(reward=1)
    assert (attempt.status, len(attempt.turns)) == (EpisodeStatus.FINISHED, 2)
    writer.transport.abort()


async def test_a_client_that_leaves_in_mid_stream_takes_nothing_back(stand: Stand) -> None:
    client = await stand.begin()
    first = await chat(client, USER, stream=True)
    assert await anext(aiter(first))
    await first.close()
    again = await chat(client, USER, extra_headers={"X-Stainless-Retry-Count": "1"}, stream=True)
    words = [chunk.choices[0].delta.content or "" async for chunk in again if chunk.choices]
    assert "".join(words) == "answer 1"
    attempt = await stand.finished(reward=1)
    assert len(attempt.turns) == 1


FIVE_MEGABYTES = "five megabytes " * 350_000
CALLED = {"id": "c", "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": FIVE_MEGABYTES})}}


@pytest.mark.parametrize(
    ("history", "tools"),
    [
        ([{"role": "user", "content": FIVE_MEGABYTES}], []),
        ([USER], [{"type": "function", "function": {"name": "add", "description": FIVE_MEGABYTES}}]),
        (
            [
                USER,
                {"role": "assistant", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c", "content": "5"},
            ],
            [],
        ),
    ],
    ids=["words", "tools", "calls"],
)
async def test_a_history_that_no_model_reads_is_refused_and_the_session_goes_on(
    stand: Stand, history: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    client = await stand.begin()
    with pytest.raises(openai.BadRequestError) as refused:
        await chat(client, *history, **({"tools": tools} if tools else {}))
    assert refused.value.code == "context_length_exceeded"
    assert f"at most {MOST_CHARACTERS} are read" in refused.value.message
    await chat(client, USER)
    attempt = await stand.finished(reward=1)
    assert len(attempt.turns) == 1


async def test_a_long_history_stands_nobody_still(stand: Stand) -> None:
    client = await stand.begin()
    longest, last = 0.0, time.monotonic()

    async def beat() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    beating = asyncio.create_task(beat())
    began = time.monotonic()
    await chat(client, {"role": "user", "content": "a long history " * 150_000})
    took = time.monotonic() - began
    beating.cancel()
    assert took > 0.5, "it has to be long, to show anything"
    assert longest < took / 2, f"of {took:.1f} s the loop stood still for {longest:.1f} s"
    await stand.finished(reward=1)


def test_a_long_text_has_the_same_ids_in_a_batch() -> None:
    own, text = renderer(), "a long text, with 12 words. " * (LONG // 20)
    short = [own.encode(text[place : place + 28]) for place in range(0, len(text), 28)]
    assert len(text) > LONG
    assert own.encode(text) == tuple(id_ for part in short for id_ in part)


async def test_two_hundred_tools_are_offered(stand: Stand) -> None:
    client = await stand.begin()
    tools = [
        {"type": "function", "function": {"name": f"tool_{no}", "parameters": {"type": "object"}}} for no in range(200)
    ]
    stand.engine.texts = ['<tool_call>\n{"name": "tool_199", "arguments": {}}\n</tool_call>']
    answer = await chat(client, USER, tools=tools)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["tool_199"]
    await stand.finished(reward=1)


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": 2,}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": "2 and 3"}\n</tool_call>',
        '<tool_call>\n{"name": 5}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": NaN}}',
    ],
)
async def test_a_call_that_is_none_stays_words_and_can_be_sent_back(stand: Stand, said: str) -> None:
    client = await stand.begin()
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    stand.engine.texts = [said]
    answer = await chat(client, USER, tools=tools)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "stop"
    assert message.tool_calls is None
    assert message.content.strip() == said
    await chat(client, USER, message.model_dump(exclude_none=True), USER, tools=tools)
    attempt = await stand.finished(reward=1)
    assert [turn.begins for turn in attempt.turns] == [0, 0], "one chain, whatever it said"


async def test_a_clock_that_jumps_ends_no_session(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await stand.begin(run_timeout_s=30)
    await chat(client, USER)
    real = time.time
    for jump in (86_400.0, -86_400.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        await chat(client, USER)
        await asyncio.sleep(0.3)
    attempt = await stand.finished(reward=1)
    assert (attempt.status, len(attempt.turns)) == (EpisodeStatus.FINISHED, 3)


async def test_how_a_session_ended_is_written_before_its_gateway_is_gone(stand: Stand) -> None:
    client = await stand.begin()
    await chat(client, USER)
    assert stand.playing is not None
    stand.playing.cancel()
    await asyncio.wait([stand.playing])
    await stand.gateway.close()
    row = stand.conn.execute("SELECT state, reason, calls FROM store.program_session").fetchone()
    assert row == ("ended", "rollout: the run does not need it any more", 1)


async def test_a_reward_of_a_program_that_asked_no_agent_is_none(stand: Stand) -> None:
    await stand.begin()
    attempt = await stand.finished(reward=1.0)
    assert (attempt.status, attempt.reason) == (EpisodeStatus.FAILED, f"environment: {NO_CALL}")
    assert await stand.state("ended") == ("ended", attempt.reason)
