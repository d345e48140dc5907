"""A call that its model has no room for is refused as other services refuse it, and its session goes on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import psycopg
import pytest
from openai import AsyncOpenAI

from flexmarl.contracts.wire import EpisodeStatus
from tests.support.gateway_stand import Stand, standing
from workers.rollout.turns import TurnRefusedError

pytestmark = pytest.mark.services

USER = {"role": "user", "content": "2+3?"}
LONG = {"role": "user", "content": "and so on " * 50}


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        made.engine.positions = 200
        yield made


async def chat(client: AsyncOpenAI, *messages: dict[str, Any], model: str = "solver", **more: Any) -> dict[str, Any]:
    answer = await client.chat.completions.create(model=model, messages=list(messages), **more)
    return answer.choices[0].message.model_dump(exclude_none=True)


async def refused(client: AsyncOpenAI, *messages: dict[str, Any], **more: Any) -> str:
    with pytest.raises(openai.BadRequestError) as told:
        await chat(client, *messages, **more)
    assert told.value.code == "context_length_exceeded"
    return str(told.value)


async def test_what_was_said_goes_on_behind_a_refused_call(stand: Stand) -> None:
    client = await stand.begin()
    first = await chat(client, USER)
    text = await refused(client, USER, first, LONG)
    assert "200 at most" in text
    assert "the session goes on" in text
    await chat(client, USER, first, {"role": "user", "content": "Sure?"})
    attempt = await stand.finished(reward=1)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert [(turn.turn, turn.begins) for turn in attempt.turns] == [(0, 0), (1, 0)]
    one, two = attempt.turns
    assert two.prompt[: len(one.prompt)] == one.prompt
    assert attempt.breaks == {}


async def test_a_refused_call_that_would_have_begun_anew_leaves_no_break(stand: Stand) -> None:
    client = await stand.begin()
    first = await chat(client, USER)
    await refused(client, LONG)
    await chat(client, USER, first, {"role": "user", "content": "Sure?"})
    attempt = await stand.finished(reward=1)
    assert [(turn.turn, turn.begins) for turn in attempt.turns] == [(0, 0), (1, 0)]
    assert attempt.breaks == {}


async def test_the_others_of_a_round_are_answered(stand: Stand) -> None:
    client = await stand.begin()
    stand.engine.free.clear()
    waiting = asyncio.create_task(chat(client, USER))
    while not stand.engine.asked:
        await asyncio.sleep(0.01)
    both = [asyncio.create_task(refused(client, LONG)), asyncio.create_task(chat(client, USER, model="reviser"))]
    [session] = stand.gateway._sessions.values()
    while len(session._waiting) < 2:
        await asyncio.sleep(0.01)
    stand.engine.free.set()
    await asyncio.gather(waiting, *both)
    attempt = await stand.finished(reward=1)
    assert sorted((turn.role, turn.turn) for turn in attempt.turns) == [("reviser", 0), ("solver", 0)]


async def test_a_program_whose_calls_were_all_refused_learns_why(stand: Stand) -> None:
    client = await stand.begin()
    await refused(client, LONG)
    asked = len(stand.engine.asked)
    await refused(client, LONG, extra_headers={"X-Stainless-Retry-Count": "1"})
    assert len(stand.engine.asked) == asked, "a repetition costs nothing"
    attempt = await stand.finished(reward=1)
    assert attempt.status is EpisodeStatus.FAILED
    assert attempt.reason.startswith("environment: program: none of its calls was answered")
    assert "200 at most" in attempt.reason


async def test_any_other_refusal_of_an_engine_ends_the_session(stand: Stand) -> None:
    client = await stand.begin()
    stand.engine.refusal = TurnRefusedError("nonfinite_logprobs", "not a number")
    with pytest.raises(openai.APIStatusError) as ended:
        await chat(client, USER)
    assert ended.value.status_code == 410
    assert (await stand.ended()).reason == "engine: nonfinite_logprobs: not a number"
