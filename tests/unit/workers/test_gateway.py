"""The gateway against the unmodified client of OpenAI, with the real store, chains and record; tokens are scripted."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY

import openai
import psycopg
import pytest
from openai import AsyncOpenAI

from flexmarl.contracts.wire import EpisodeStatus
from tests.support.chat_templates import END
from tests.support.gateway_stand import CALL, WORDS, Stand, standing
from workers.rollout.episode import tokens_of
from workers.rollout.gateway import server
from workers.rollout.slots import HeldSlots

pytestmark = pytest.mark.services

USER = {"role": "user", "content": "2+3?"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


async def chat(client: AsyncOpenAI, *messages: dict[str, Any], model: str = "solver", **more: Any) -> Any:
    return await client.chat.completions.create(model=model, messages=list(messages), **more)


def said(answer: Any) -> dict[str, Any]:
    return answer.choices[0].message.model_dump(exclude_none=True)


async def test_calls_are_turns_of_one_chain_and_the_report_is_the_score(stand: Stand) -> None:
    client = await stand.begin()
    first = await chat(client, USER)
    more = {"role": "user", "content": "Sure?"}
    second = await chat(client, USER, said(first), more, temperature=0.2)
    attempt = await stand.finished(reward=0.5, rewards={"solver": 1.0})
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert attempt.outcome is not None
    assert (attempt.outcome.scores, attempt.outcome.team_score) == ({"solver": 1.0, "reviser": 0.5}, 0.5)
    assert [(turn.role, turn.turn, turn.begins) for turn in attempt.turns] == [("solver", 0, 0), ("solver", 1, 0)]
    one, two = attempt.turns
    assert two.prompt[: len(one.prompt) + len(one.reply.choice.token_ids)] == (
        *one.prompt,
        *one.reply.choice.token_ids,
    )
    assert attempt.breaks == {}
    assert (first.choices[0].message.content, second.choices[0].message.content) == ("answer 1", "answer 2")
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (len(one.prompt), len("answer 1") + 1)
    assert stand.engine.asked[1].temperature == 1.0, "the run says how its agents sample"
    assert await stand.state() == ("finished", "")


async def test_another_history_begins_a_chain_and_is_counted_as_a_break(stand: Stand) -> None:
    client = await stand.begin()
    first = await chat(client, USER)
    await chat(client, {"role": "user", "content": "2+4?"}, said(first), USER)
    await chat(client, {"role": "user", "content": "Sum up."}, model="reviser")
    attempt = await stand.finished(reward=1)
    assert [(turn.role, turn.turn, turn.begins) for turn in attempt.turns] == [
        ("solver", 0, 0),
        ("solver", 1, 1),
        ("reviser", 0, 0),
    ]
    assert attempt.breaks == {"other_history": [("solver", 1)]}


async def test_tools_are_called_and_their_results_go_on_in_the_chain(stand: Stand) -> None:
    stand.engine.texts = [CALL, "5", "<tool_call>\n{broken\n</tool_call>"]
    client = await stand.begin()
    first = await chat(client, USER, tools=TOOLS)
    assert first.choices[0].finish_reason == "tool_calls"
    [call] = first.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2, "b": 3})
    result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    second = await chat(client, USER, said(first), result, tools=TOOLS)
    third = await chat(client, USER, said(first), result, said(second), USER, tools=TOOLS)
    assert third.choices[0].message.content == "<tool_call>\n{broken\n</tool_call>", "what is no call is words"
    attempt = await stand.finished(reward=1)
    assert [turn.begins for turn in attempt.turns] == [0, 0, 0]
    assert attempt.breaks == {}


async def test_a_stream_says_what_the_whole_answer_says(stand: Stand) -> None:
    stand.engine.texts = [CALL, CALL, "words", "words"]
    client = await stand.begin()
    for tools in (TOOLS, None):
        more = {"tools": tools} if tools else {}
        whole = await chat(client, USER, **more)
        async with client.chat.completions.stream(
            model="solver", messages=[USER], stream_options={"include_usage": True}, **more
        ) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_completion()
        mine, other = said(whole), said(streamed)
        for one in (*mine.get("tool_calls", ()), *other.get("tool_calls", ())):
            one.pop("id"), one.pop("index", None), one["function"].pop("parsed_arguments", None)
        assert {name: mine.get(name) for name in ("content", "tool_calls")} == {
            name: other.get(name) or None for name in ("content", "tool_calls")
        }
        assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason
        assert streamed.usage.completion_tokens == whole.usage.completion_tokens
        assert streamed.usage.prompt_tokens == whole.usage.prompt_tokens
    await stand.finished(reward=1)


async def test_a_repeated_body_has_the_same_answer_and_is_one_turn(stand: Stand) -> None:
    client = await stand.begin()
    plain = {"extra_headers": {"X-Stainless-Retry-Count": openai.Omit()}}
    first, again = await chat(client, USER, **plain), await chat(client, USER, **plain)
    assert first == again
    other = await chat(client, USER)
    assert other.id != first.id, "a client that says it asks anew has a new answer"
    attempt = await stand.finished(reward=1)
    assert len(attempt.turns) == 2


async def test_a_client_that_hangs_up_loses_no_answer(stand: Stand) -> None:
    client = await stand.begin()
    stand.engine.free.clear()
    with pytest.raises(openai.APITimeoutError):
        await chat(client, USER, timeout=0.5)
    await asyncio.sleep(0.5)  # the gateway hears that nobody waits
    stand.engine.free.set()
    answer = await chat(client, USER, extra_headers={"X-Stainless-Retry-Count": "1"})
    attempt = await stand.finished(reward=1)
    assert [turn.reply.choice.token_ids for turn in attempt.turns] == [stand_ids(answer)]


def stand_ids(answer: Any) -> list[int]:
    return WORDS.encode(answer.choices[0].message.content + END).ids


async def test_two_seats_at_once_are_answered_together(stand: Stand) -> None:
    client = await stand.begin()
    stand.engine.free.clear()
    calls = [asyncio.create_task(chat(client, USER, model=seat)) for seat in ("solver", "reviser", "reviser")]
    while len(stand.engine.asked) < 1:
        await asyncio.sleep(0.02)
    stand.engine.free.set()
    answers = await asyncio.gather(*calls)
    assert len({answer.id for answer in answers}) == 3
    attempt = await stand.finished(reward=1)
    assert sorted(turn.role for turn in attempt.turns) == ["reviser", "reviser", "solver"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"stop": ["x"]}, "stop"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "tools": TOOLS}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format/json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format/json_schema/schema",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "?"}]}, "messages/0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages/0/content"),
        ({"messages": [USER, {"role": "assistant", "content": "5"}]}, "messages/1"),
        ({"messages": [{"role": "tool", "content": "5"}]}, "messages/0/tool_call_id"),
        ({"tools": [{"type": "web"}]}, "tools/0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"beam": 4}}, "beam"),
    ],
    ids=str,
)
async def test_a_body_that_cannot_be_honoured_names_its_field(stand: Stand, body: dict[str, Any], param: str) -> None:
    client = await stand.begin()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**{"model": "solver", "messages": [USER], **body})
    assert refused.value.param == param
    assert (await stand.finished(reward=1)).turns == [], "the session goes on, and nothing was asked"


async def test_strangers_and_strange_paths_are_refused_in_the_dialect(stand: Stand) -> None:
    client = await stand.begin()
    assert [model.id async for model in await client.models.list()] == ["solver", "reviser"]
    assert (await client.models.retrieve("reviser")).id == "reviser"
    for key in ("", "fms_" + "x" * 43, "other"):
        with pytest.raises(openai.AuthenticationError):
            await chat(stand.client(api_key=key or "-"), USER)
    with pytest.raises(openai.NotFoundError, match="solver, reviser"):
        await chat(client, USER, model="judge")
    with pytest.raises(openai.NotFoundError, match="available"):
        await client.embeddings.create(model="solver", input="x")
    with pytest.raises(openai.BadRequestError, match="not JSON"):
        await client.post("/chat/completions", cast_to=dict, content=b"{broken")
    await stand.finished(reward=1)


async def test_calls_beyond_the_most_are_refused_and_the_session_goes_on(stand: Stand) -> None:
    client = await stand.begin(max_calls=1)
    await chat(client, USER)
    with pytest.raises(openai.PermissionDeniedError, match="max_calls"):
        await chat(client, USER, said_more())
    assert (await stand.finished(reward=1)).status is EpisodeStatus.FINISHED


def said_more() -> dict[str, Any]:
    return {"role": "user", "content": "more"}


async def test_a_session_that_nobody_finishes_fails_by_its_deadline_and_earns_nothing(stand: Stand) -> None:
    client = await stand.begin(run_timeout_s=0.5)
    await chat(client, USER)
    attempt = await stand.ended()
    assert attempt.status is EpisodeStatus.FAILED
    assert attempt.outcome is None
    assert attempt.reason.startswith("environment: run: the program reported nothing in its time")
    assert await stand.state() == ("ended", attempt.reason)
    with pytest.raises(openai.APIStatusError, match="reported nothing") as late:
        await chat(client, USER, said_more())
    assert late.value.status_code == 410
    assert not stand.report(reward=1)


async def test_time_runs_for_the_program_alone(stand: Stand) -> None:
    client = await stand.begin(run_timeout_s=1.0)
    stand.engine.free.clear()
    threading.Timer(2.0, asyncio.get_running_loop().call_soon_threadsafe, [stand.engine.free.set]).start()
    await chat(client, USER)
    assert (await stand.finished(reward=1)).status is EpisodeStatus.FINISHED


async def test_the_store_says_how_far_a_session_is(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SEEN_S", 0.1)
    client = await stand.begin(run_timeout_s=20.0)
    reply = await chat(client, USER)
    assert reply.usage is not None
    calls, tokens, left_s = await stand.meter(lambda calls, tokens, left_s: calls == 1)
    assert (calls, tokens) == (1, reply.usage.completion_tokens)
    await stand.meter(lambda calls, tokens, now_s: now_s < left_s)  # its time runs while it says nothing
    stand.engine.free.clear()
    asked = asyncio.create_task(chat(client, USER, said_more()))
    while len(stand.engine.asked) < 2:
        await asyncio.sleep(0.05)
    before, now = (0, 0, 0.0), await stand.meter(lambda *_: True)
    while before != now:  # until its time stands still, which it does while an agent answers
        await asyncio.sleep(0.5)
        before, now = now, await stand.meter(lambda *_: True)
    assert now[2] > 0
    stand.engine.free.set()
    await asked
    monkeypatch.setattr(server, "SEEN_S", 1000.0)
    await asyncio.sleep(0.3)
    await chat(client, USER, said_more(), said_more())
    attempt = await stand.finished(reward=1)
    played = tokens_of(attempt)
    assert await stand.meter(lambda calls, *_: calls == 3) == (3, played, ANY), "the last word is written at the end"


async def test_a_session_that_no_program_takes_fails_by_name(stand: Stand) -> None:
    stand.taken = lambda: None  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stand.begin(boot_timeout_s=0.3), 2)
    assert (await stand.ended()).reason == "environment: boot: no program took the session within 0.3 s"
    assert (await stand.state())[0] == "ended"


async def test_a_program_says_that_it_failed(stand: Stand) -> None:
    client = await stand.begin()
    await chat(client, USER)
    attempt = await stand.finished(error="the tool crashed")
    assert (attempt.status, attempt.reason) == (EpisodeStatus.FAILED, "environment: program: the tool crashed")
    assert await stand.state("ended") == ("ended", attempt.reason)


async def test_an_episode_that_is_not_needed_any_more_ends_its_session(stand: Stand) -> None:
    client = await stand.begin()
    await chat(client, USER)
    assert stand.playing is not None
    stand.playing.cancel()
    assert await stand.state() == ("ended", "rollout: the run does not need it any more")
    with pytest.raises(openai.APIStatusError, match="does not need it"):
        await chat(client, USER, said_more())


async def awaited(stand: Stand, timeout_s: float = 600.0, **settings: Any) -> AsyncOpenAI:
    """Play a session whose program says in the end that its reward comes later, and wait until its worker knows."""
    client = await stand.begin(reward_timeout_s=timeout_s, **settings)
    await chat(client, USER)
    assert stand.reward_later(timeout_s)
    async with asyncio.timeout(60):
        while not any(session.awaits_reward for session in stand.gateway._sessions.values()):
            await asyncio.sleep(0.02)
    return client


async def test_a_reward_may_arrive_when_the_program_has_ended_and_the_first_one_stands(stand: Stand) -> None:
    client = await awaited(stand, run_timeout_s=1.0)
    await asyncio.sleep(1.5)  # neither the time between calls nor that of the episode runs any more
    assert (await stand.state("awaiting_reward"))[0] == "awaiting_reward"
    with pytest.raises(openai.APIStatusError, match="its reward comes later") as refused:
        await chat(client, USER, said_more())
    assert refused.value.status_code == 410
    assert not stand.reward_later(600), "said once"
    attempt = await stand.finished(reward=0.5)
    assert (attempt.status, attempt.outcome and attempt.outcome.team_score) == (EpisodeStatus.FINISHED, 0.5)
    assert [turn.turn for turn in attempt.turns] == [0], "what was said is kept"
    assert not stand.report(reward=1), "the first report with a reward stands"
    assert await stand.state() == ("finished", "")


async def test_a_reward_that_does_not_arrive_in_its_time_is_a_failure_and_never_0(stand: Stand) -> None:
    await awaited(stand, 0.5)
    attempt = await stand.ended()
    known = "environment: reward: no reward arrived within 0.5 s of the program's end (environment.reward_timeout_s)"
    assert (attempt.status, attempt.outcome, attempt.reason) == (EpisodeStatus.FAILED, None, known)
    assert not attempt.unscored, "it is played again, as after a report that is missing"
    assert attempt.broke
    assert await stand.state() == ("ended", known)
    assert not stand.report(reward=1)


async def test_a_report_before_the_deadline_counts_though_its_worker_hears_of_it_later(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await awaited(stand)
    monkeypatch.setattr(server, "LOOK_S", 3.0)
    await asyncio.sleep(0.5)  # the look that was due
    assert stand.report(reward=1)
    stand.conn.execute("UPDATE store.program_session SET reward_deadline_at = clock_timestamp() - interval '1 s'")
    assert (await stand.ended()).status is EpisodeStatus.FINISHED


async def test_what_waits_for_a_reward_may_end_with_an_error(stand: Stand) -> None:
    await awaited(stand)
    attempt = await stand.finished(error="the tests did not start")
    assert (attempt.status, attempt.reason) == (EpisodeStatus.FAILED, "environment: program: the tests did not start")


async def test_a_session_that_awaits_its_reward_ends_where_its_episode_is_not_needed_any_more(stand: Stand) -> None:
    await awaited(stand)
    assert stand.playing is not None
    stand.playing.cancel()
    assert await stand.state() == ("ended", "rollout: the run does not need it any more")
    assert not stand.report(reward=1)


async def test_calls_that_wait_when_the_program_has_ended_are_refused_at_once(stand: Stand) -> None:
    client = await stand.begin(reward_timeout_s=600.0)
    stand.engine.free.clear()
    answered = asyncio.create_task(chat(client, USER))
    while not stand.engine.asked:
        await asyncio.sleep(0.02)
    waiting = asyncio.create_task(chat(client, USER, said_more()))
    [session] = stand.gateway._sessions.values()
    while not session._waiting:
        await asyncio.sleep(0.02)
    assert stand.reward_later(600)
    with pytest.raises(openai.APIStatusError, match="its reward comes later"):
        await asyncio.wait_for(waiting, 60)
    stand.engine.free.set()
    await answered
    assert len((await stand.finished(reward=1)).turns) == 1


async def test_an_episode_that_awaits_its_reward_leaves_its_places(stand: Stand) -> None:
    limits = asyncio.Semaphore(1), asyncio.Semaphore(1)
    async with HeldSlots(*limits) as held:
        stand.held = held
        await awaited(stand)
        async with asyncio.timeout(60), limits[0], limits[1]:
            pass
        assert (await stand.finished(reward=1)).status is EpisodeStatus.FINISHED
        await held.take()
        await held.take()
        assert all(limit.locked() for limit in limits), "taken once"
    assert not any(limit.locked() for limit in limits)
