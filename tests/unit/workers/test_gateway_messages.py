"""The gateway against the unmodified client of Anthropic, with real store, chains and record, and scripted tokens."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import psycopg
import pytest
from anthropic import AsyncAnthropic

from flexmarl.contracts.wire import EpisodeStatus
from tests.support.chat_templates import QWEN3
from tests.support.gateway_stand import CALL, Stand, standing

pytestmark = pytest.mark.services

USER = {"role": "user", "content": "2+3?"}
TOOLS = [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}]
AS_TEMPLATES_READ = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object"}, "description": "Adds."},
}
THOUGHT = "<think>\nTwo and three.\n</think>\n\n"


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


async def ask(client: AsyncAnthropic, *messages: dict[str, Any], model: str = "solver", **more: Any) -> Any:
    return await client.messages.create(**{"max_tokens": 200, **more, "model": model, "messages": list(messages)})


def said(answer: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": answer.content}


async def test_calls_are_turns_of_one_chain(stand: Stand) -> None:
    await stand.begin()
    client = stand.anthropic(api_key=None, auth_token=stand.key)
    system = [{"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}}]
    first = await ask(client, USER, system=system, extra_body={"temperature": 0.2})
    second = await ask(client, USER, said(first), {"role": "user", "content": "Sure?"}, system="You add.")
    attempt = await stand.finished(reward=1)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert [(turn.role, turn.turn, turn.begins) for turn in attempt.turns] == [("solver", 0, 0), ("solver", 1, 0)]
    assert attempt.breaks == {}
    roles = [message.role for message in stand.engine.asked[1].conversation]
    assert roles == ["system", "user", "assistant", "user"]
    assert [block.text for block in (*first.content, *second.content)] == ["answer 1", "answer 2"]
    assert (first.stop_reason, first.model, first.role) == ("end_turn", "solver", "assistant")
    assert first.usage.input_tokens == len(attempt.turns[0].prompt)
    assert second.usage.output_tokens == len(attempt.turns[1].reply.choice.token_ids)
    assert stand.engine.asked[0].temperature == 1.0, "the run says how its agents sample"


async def test_tools_are_called_and_their_results_go_on_in_the_chain(stand: Stand) -> None:
    stand.engine.texts = ["I add." + CALL + CALL, "5", "none"]
    await stand.begin()
    client = stand.anthropic()
    first = await ask(client, USER, tools=TOOLS, tool_choice={"type": "auto"})
    words, *calls = first.content
    assert (first.stop_reason, words.text) == ("tool_use", "I add.")
    assert [(call.name, call.input) for call in calls] == [("add", {"a": 2, "b": 3})] * 2
    assert len({call.id for call in calls}) == 2
    results = [
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": "5"},
        {"type": "tool_result", "tool_use_id": calls[1].id, "content": [{"type": "text", "text": "6"}]},
    ]
    told = {"role": "user", "content": [*results, {"type": "text", "text": "And?"}, {"type": "text", "text": "So?"}]}
    second = await ask(client, USER, said(first), told, tools=TOOLS)
    conversation = stand.engine.asked[1].conversation
    assert [(one.role, one.content) for one in conversation[2:]] == [
        ("tool", "5"),
        ("tool", "6"),
        ("user", "And?\nSo?"),
    ]
    assert [one.tool_call_id for one in conversation[2:4]] == [call.id for call in calls]
    history = [USER, said(first), told, said(second), USER]
    third = await ask(client, *history, tools=TOOLS, tool_choice={"type": "none"})
    assert third.content[0].text == "none"
    attempt = await stand.finished(reward=1)
    assert attempt.breaks == {"history_rewritten": [("solver", 2)]}, "the template shows the tools, and they are gone"


async def test_a_stream_says_what_the_whole_answer_says(stand: Stand) -> None:
    texts = ["words", "I add." + CALL + CALL, CALL, THOUGHT + "5", THOUGHT + CALL, " "]
    stand.engine.texts = [text for text in texts for _ in range(2)]
    stand.template = QWEN3
    await stand.begin()
    kinds = [await kinds_said_alike(stand.anthropic()) for _ in texts]
    calls = ["tool_use"]
    assert kinds == [["text"], ["text", *calls, *calls], calls, ["thinking", "text"], ["thinking", *calls], []]
    await stand.finished(reward=1)


async def kinds_said_alike(client: AsyncAnthropic) -> list[str]:
    """Ask for the same, whole and as a stream; returns the kinds of its blocks."""
    seen = []
    whole = await ask(client, USER, tools=TOOLS)
    asked = {"model": "solver", "max_tokens": 200, "messages": [USER], "tools": TOOLS}
    async with client.messages.stream(**asked) as stream:
        async for event in stream:
            seen.append(event)
        streamed = await stream.get_final_message()
    assert without_ids(streamed) == without_ids(whole)
    assert seen[0].message.usage.input_tokens == whole.usage.input_tokens, "the first event says what was read"
    assert (seen[0].type, seen[-1].type) == ("message_start", "message_stop")
    return [block.type for block in whole.content]


def without_ids(answer: Any) -> dict[str, Any]:
    found = answer.model_dump(exclude_none=True)
    for one in (found, *found["content"]):
        one.pop("id", None)
    return found


async def test_a_reply_that_is_cut_off_says_so(stand: Stand) -> None:
    await stand.begin()
    answer = await ask(stand.anthropic(), USER, max_tokens=3, extra_headers=key_in_its_own_header(stand))
    assert (answer.stop_reason, answer.usage.output_tokens, answer.content[0].text) == ("max_tokens", 3, "ans")
    await stand.finished(reward=1)


def key_in_its_own_header(stand: Stand) -> dict[str, Any]:
    """Return the key as other clients of this dialect send it."""
    return {"X-Api-Key": stand.key, "Authorization": anthropic.Omit()}


async def test_a_repeated_body_has_the_same_answer_and_is_one_turn(stand: Stand) -> None:
    await stand.begin()
    client = stand.anthropic()
    plain = {"extra_headers": {"X-Stainless-Retry-Count": anthropic.Omit()}}
    first, again = await ask(client, USER, **plain), await ask(client, USER, **plain)
    assert first == again
    other = await ask(client, USER)
    assert other.id != first.id, "a client that says it asks anew has a new answer"
    assert len((await stand.finished(reward=1)).turns) == 2


async def test_counts_are_what_the_call_will_read(stand: Stand) -> None:
    await stand.begin(instructions="You add numbers.")
    client = stand.anthropic()
    asked = {"system": "You add.", "tools": TOOLS, "messages": [USER]}
    counted = await client.messages.count_tokens(model="solver", **asked)
    answer = await client.messages.create(model="solver", max_tokens=9, **asked)
    assert counted.input_tokens == answer.usage.input_tokens
    with pytest.raises(anthropic.NotFoundError, match="solver, reviser"):
        await client.messages.count_tokens(model="judge", messages=[USER])
    attempt = await stand.finished(reward=1)
    assert len(attempt.turns) == 1, "a count is no turn"
    with pytest.raises(anthropic.APIStatusError) as late:
        await client.messages.count_tokens(model="solver", messages=[USER])
    assert late.value.status_code == 410


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"stop_sequences": ["x"]}, "stop_sequences"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"extra_body": {"max_tokens": None}}, "max_tokens"),
    ({"output_config": {"effort": "low", "task_budget": 9}}, "output_config"),
    ({"output_config": {"effort": "low", "format": {"type": "json_schema"}}}, "output_config/format/schema"),
    ({"system": [IMAGE]}, "system"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "?"}]}, "messages/0"),
    ({"messages": [{"role": "user", "content": []}]}, "messages/0/content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages/0/content/0"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages/0/content/0/tool_use_id"),
    ({"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use"}]}, USER]}, "messages/1/content/0"),
    ({"messages": [USER, {"role": "assistant", "content": "5"}], "system": "Add."}, "messages/1"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools/0"),
    ({"tool_choice": {"type": "any"}, "tools": TOOLS}, "tool_choice"),
    ({"extra_body": {"beam": 4}}, "beam"),
    ({"extra_body": {"stream": "yes"}}, "stream"),
]
"""What a body says -> the field that is named."""


async def test_a_body_that_cannot_be_honoured_names_its_field(stand: Stand) -> None:
    await stand.begin()
    client = stand.anthropic()
    for body, field in REFUSED:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(**{"model": "solver", "max_tokens": 9, "messages": [USER], **body})
        kind, words = error_of(refused.value)
        assert kind == "invalid_request_error"
        assert words.startswith(f"{field}: "), words
    assert (await stand.finished(reward=1)).turns == [], "the session goes on, and nothing was asked"


def error_of(refused: anthropic.APIStatusError) -> tuple[str, str]:
    assert isinstance(refused.body, dict)
    assert (refused.body["type"], set(refused.body["error"])) == ("error", {"type", "message"})
    return refused.body["error"]["type"], refused.body["error"]["message"]


async def test_strangers_and_strange_paths_are_refused_in_the_dialect(stand: Stand) -> None:
    await stand.begin(max_calls=1)
    client = stand.anthropic()
    for key in ("fms_" + "x" * 43, "other"):
        with pytest.raises(anthropic.AuthenticationError) as stranger:
            await ask(stand.anthropic(api_key=key), USER)
        assert error_of(stranger.value)[0] == "authentication_error"
    with pytest.raises(anthropic.NotFoundError, match="solver, reviser") as unknown:
        await ask(client, USER, model="judge")
    assert error_of(unknown.value)[0] == "not_found_error"
    with pytest.raises(anthropic.NotFoundError, match="available") as nowhere:
        await client.messages.batches.list()
    assert error_of(nowhere.value)[0] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="not JSON") as broken:
        await client.post("/v1/messages", cast_to=dict, content=b"{broken")
    assert error_of(broken.value)[0] == "invalid_request_error"
    await ask(client, USER)
    with pytest.raises(anthropic.PermissionDeniedError, match="max_calls") as used_up:
        await ask(client, USER)
    assert error_of(used_up.value)[0] == "permission_error"
    await stand.finished(reward=1)
    with pytest.raises(anthropic.APIStatusError, match="session has ended") as late:
        await ask(client, USER, said_more())
    assert (late.value.status_code, error_of(late.value)[0]) == (410, "invalid_request_error")


def said_more() -> dict[str, Any]:
    return {"role": "user", "content": "more"}


async def test_a_prompt_that_is_too_long_is_the_error_that_clients_know(stand: Stand) -> None:
    await stand.begin()
    stand.engine.positions, room = 5, stand.engine.positions
    client = stand.anthropic()
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .*5 at most.*the session goes on"):
        await ask(client, USER)
    stand.engine.positions = room
    await ask(client, said_more())
    assert len((await stand.finished(reward=1)).turns) == 1


async def test_messages_that_the_template_cannot_write_are_counted_by_a_refusal(stand: Stand) -> None:
    stand.template = "{{ raise_exception('users speak first') }}"
    await stand.begin()
    with pytest.raises(anthropic.BadRequestError, match=r"messages: .*users speak first"):
        await stand.anthropic().messages.count_tokens(model="solver", messages=[USER])
    assert (await stand.finished(error="over")).reason == "environment: program: over", "the session goes on"
