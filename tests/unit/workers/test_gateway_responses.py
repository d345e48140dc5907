"""OpenAI's responses: the gateway against its unmodified client; real store, chains and record, scripted tokens."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import psycopg
import pytest
from openai import AsyncOpenAI

from flexmarl.contracts.wire import EpisodeStatus
from tests.support.chat_templates import QWEN3
from tests.support.gateway_stand import CALL, Stand, standing

pytestmark = pytest.mark.services

USER = {"role": "user", "content": "2+3?"}
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": False}
THOUGHT = "<think>\nTwo and three.\n</think>\n\n"
BROKEN = "<tool_call>\n{broken\n</tool_call>"


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


async def ask(client: AsyncOpenAI, *items: Any, model: str = "solver", **more: Any) -> Any:
    return await client.responses.create(**{"input": list(items), **more, "model": model})


async def test_calls_are_turns_of_one_chain(stand: Stand) -> None:
    client = await stand.begin()
    first = await ask(client, input="2+3?", instructions="You add.", temperature=0.2)
    parts = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sure?"}]}
    second = await ask(client, USER, *first.output, parts, instructions="You add.")
    attempt = await stand.finished(reward=1)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert [(turn.role, turn.turn, turn.begins) for turn in attempt.turns] == [("solver", 0, 0), ("solver", 1, 0)]
    assert attempt.breaks == {}
    conversation = stand.engine.asked[1].conversation
    assert [(one.role, one.content) for one in conversation] == [
        ("system", "You add."),
        ("user", "2+3?"),
        ("assistant", "answer 1"),
        ("user", "Sure?"),
    ]
    assert (first.output_text, second.output_text) == ("answer 1", "answer 2")
    assert (first.status, first.model, first.instructions, first.error) == ("completed", "solver", "You add.", None)
    assert first.usage.input_tokens == len(attempt.turns[0].prompt)
    assert second.usage.output_tokens == len(attempt.turns[1].reply.choice.token_ids)
    assert second.usage.total_tokens == second.usage.input_tokens + second.usage.output_tokens
    assert stand.engine.asked[0].temperature == 1.0, "the run says how its agents sample"
    assert first.temperature is None, "and the answer does not say what was not done"


async def test_functions_are_called_and_their_outputs_go_on_in_the_chain(stand: Stand) -> None:
    stand.engine.texts = ["I add." + CALL + CALL, "5", BROKEN]
    client = await stand.begin()
    first = await ask(client, USER, tools=[TOOL], tool_choice="auto")
    words, *calls = first.output
    assert (words.type, words.content[0].text) == ("message", "I add.")
    assert [(one.type, one.name, json.loads(one.arguments)) for one in calls] == [
        ("function_call", "add", {"a": 2, "b": 3})
    ] * 2
    assert len({one.call_id for one in calls}) == len({one.id for one in calls}) == 2
    outputs = [
        {"type": "function_call_output", "call_id": calls[0].call_id, "output": "5"},
        {"type": "function_call_output", "call_id": calls[1].call_id, "output": [{"type": "input_text", "text": "6"}]},
    ]
    second = await ask(client, USER, *first.output, *outputs, tools=[TOOL])
    conversation = stand.engine.asked[1].conversation
    assert [(one.role, one.content) for one in conversation[2:]] == [("tool", "5"), ("tool", "6")]
    assert [one.tool_call_id for one in conversation[2:]] == [one.call_id for one in calls]
    third = await ask(client, USER, *first.output, *outputs, *second.output, USER, tools=[TOOL])
    assert third.output_text == BROKEN, "what is no call is words"
    assert [one.type for one in third.output] == ["message"]
    attempt = await stand.finished(reward=1)
    assert [turn.begins for turn in attempt.turns] == [0, 0, 0]
    assert attempt.breaks == {}


async def test_templates_read_functions_as_those_of_chat_completions(stand: Stand) -> None:
    stand.template = "{{ tools | tojson }}" + QWEN3
    client = await stand.begin()
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    await ask(client, USER, tools=[TOOL])
    await client.chat.completions.create(
        model="reviser", messages=[USER], tools=[{"type": "function", "function": function}]
    )
    attempt = await stand.finished(reward=1)
    assert attempt.turns[0].prompt == attempt.turns[1].prompt


async def test_a_stream_says_what_the_whole_answer_says(stand: Stand) -> None:
    texts = ["words", "I add." + CALL + CALL, CALL, THOUGHT + "5", THOUGHT + CALL, " "]
    stand.engine.texts = [text for text in texts for _ in range(2)]
    stand.template = QWEN3
    client = await stand.begin()
    kinds = [await kinds_said_alike(client) for _ in texts]
    call, words = "function_call", "message"
    assert kinds == [
        [words],
        [words, call, call],
        [call],
        ["reasoning", words],
        ["reasoning", call],
        [words],
    ]
    await stand.finished(reward=1)


async def kinds_said_alike(client: AsyncOpenAI) -> list[str]:
    """Ask for the same, whole and as a stream; returns the kinds of its items."""
    whole = await ask(client, USER, tools=[TOOL])
    seen, pieces = [], {}
    async with client.responses.stream(model="solver", input=[USER], tools=[TOOL]) as stream:
        async for event in stream:
            seen.append(event)
            if event.type.endswith(".delta"):
                pieces[event.output_index] = pieces.get(event.output_index, "") + event.delta
        streamed = await stream.get_final_response()
    assert without_ids(streamed) == without_ids(whole)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert [event.type for event in seen] == [
        "response.created", "response.in_progress", *(one for item in whole.output for one in EVENTS[item.type]),
        "response.completed",
    ]  # fmt: skip
    begun = [event.item.model_dump() for event in seen if event.type == "response.output_item.added"]
    assert [one.get("arguments") or one.get("content") or "" for one in begun] == [""] * len(begun)
    assert list(pieces.values()) == [said_by(item) for item in whole.output]
    return [item.type for item in whole.output]


EVENTS = {
    "message": [
        "response.output_item.added", "response.content_part.added", "response.output_text.delta",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
    ],
    "reasoning": [
        "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
        "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
    ],
    "function_call": [
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
    ],
}  # fmt: skip
"""Type of an item -> the events that say it."""


def said_by(item: Any) -> str:
    return item.arguments if item.type == "function_call" else item.content[0].text


def without_ids(answer: Any) -> dict[str, Any]:
    found = answer.model_dump()
    for one in (found, *found["output"]):
        for name in ("id", "call_id", "created_at", "completed_at", "parsed_arguments"):
            one.pop(name, None)
        for part in one.get("content") or ():
            part.pop("parsed", None)
    return found


async def test_thoughts_are_sent_back_and_read(stand: Stand) -> None:
    stand.engine.texts = [THOUGHT + CALL]
    stand.template = QWEN3
    client = await stand.begin()
    first = await ask(client, USER, tools=[TOOL], include=["reasoning.encrypted_content"])
    thought, call = first.output
    assert (thought.content[0].text.strip(), thought.summary) == ("Two and three.", [])
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
    await ask(client, USER, thought, call, output, tools=[TOOL], model="reviser")
    [_, said, _] = stand.engine.asked[1].conversation
    assert (said.reasoning.strip(), [one.name for one in said.tool_calls]) == ("Two and three.", ["add"])
    await stand.finished(reward=1)


async def test_a_reply_that_is_cut_off_says_so(stand: Stand) -> None:
    client = await stand.begin()
    answer = await ask(client, USER, max_output_tokens=3)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.output_text, answer.output[0].status) == ("ans", "incomplete")
    assert answer.usage.output_tokens == 3
    last = [event async for event in await ask(client, USER, max_output_tokens=3, stream=True)][-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")
    await stand.finished(reward=1)


async def test_a_call_goes_on_from_the_last_response_without_what_came_before(stand: Stand) -> None:
    stand.engine.texts = [CALL, "5"]
    client = await stand.begin()
    first = await ask(client, USER, tools=[TOOL], instructions="You add.")
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "5"}
    same = {"instructions": "You add.", "tools": [TOOL]}
    second = await ask(client, output, previous_response_id=first.id, **same)
    assert (second.output_text, second.previous_response_id) == ("5", first.id)
    third = await ask(client, input="Sure?", previous_response_id=second.id, tools=[TOOL])
    roles = [[one.role for one in turn.conversation] for turn in stand.engine.asked]
    assert roles[1] == ["system", "user", "assistant", "tool"]
    assert roles[2] == ["user", "assistant", "tool", "assistant", "user"], "instructions are of one call"
    await ask(client, USER, previous_response_id=third.id, model="reviser")
    assert [one.role for one in stand.engine.asked[3].conversation][:2] == ["user", "assistant"]
    for gone in (first.id, "resp_1"):
        with pytest.raises(openai.BadRequestError, match="send all items") as refused:
            await ask(client, USER, previous_response_id=gone)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    attempt = await stand.finished(reward=1)
    assert [turn.begins for turn in attempt.turns] == [0, 0, 2, 0]
    assert attempt.breaks == {"other_history": [("solver", 2)]}


async def test_a_repeated_body_has_the_same_answer_and_is_one_turn(stand: Stand) -> None:
    client = await stand.begin()
    plain = {"extra_headers": {"X-Stainless-Retry-Count": openai.Omit()}}
    first = await ask(client, USER)
    second = await ask(client, USER, previous_response_id=first.id, **plain)
    assert await ask(client, USER, previous_response_id=first.id, **plain) == second
    assert len((await stand.finished(reward=1)).turns) == 2


async def test_a_client_that_hangs_up_loses_no_answer(stand: Stand) -> None:
    client = await stand.begin()
    stand.engine.free.clear()
    with pytest.raises(openai.APITimeoutError):
        await ask(client, USER, stream=True, timeout=0.5)
    await asyncio.sleep(0.5)  # the gateway hears that nobody waits
    stand.engine.free.set()
    stream = await ask(client, USER, stream=True, extra_headers={"X-Stainless-Retry-Count": "1"})
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    more = await ask(client, {"role": "user", "content": "Sure?"}, previous_response_id=event.item_id[4:])
    assert more.output_text == "answer 2"
    attempt = await stand.finished(reward=1)
    assert [turn.begins for turn in attempt.turns] == [0, 0], "what was read in part is said whole"


IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/a.png"}]}
SHAPE = {"format": {"type": "json_schema", "name": "sum", "schema": {}}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": ["?"]}, "input/0"),
    ({"input": [{"role": "robot", "content": "?"}]}, "input/0"),
    ({"input": [IMAGE]}, "input/0/content"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input/0"),
    ({"input": [{"type": "function_call_output", "output": "5"}]}, "input/0/call_id"),
    ({"input": [{"type": "function_call", "name": "add"}, USER]}, "input/0"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "{x"}]}, "input/0/arguments"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "[]"}]}, "input/0/arguments"),
    ({"input": [USER, {"role": "assistant", "content": "5"}]}, "input/1"),
    ({"instructions": [IMAGE]}, "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"text": {"format": {"type": "grammar"}}}, "text/format"),
    ({"text": SHAPE, "tools": [TOOL]}, "text/format"),
    ({"text": {"format": {**SHAPE["format"], "schema": {"type": "word"}}}}, "text/format"),
    ({"text": {"format": {"type": "json_schema"}}}, "text/format/schema"),
    ({"text": "json"}, "text/format"),
    ({"tools": [{"type": "web_search"}]}, "tools/0"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "add"}}, "tool_choice"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"previous_response_id": 3}, "previous_response_id"),
    ({"extra_body": {"beam": 4}}, "beam"),
    ({"extra_body": {"stream": "yes"}}, "stream"),
]
"""What a body says -> the field that is named."""


async def test_a_body_that_cannot_be_honoured_names_its_field(stand: Stand) -> None:
    client = await stand.begin()
    for body, param in REFUSED:
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(client, **{"input": "2+3?", **body})
        assert refused.value.param == param, body
        assert str(refused.value.body["message"]).startswith(f"{param}: ")  # type: ignore[index]
    assert (await stand.finished(reward=1)).turns == [], "the session goes on, and nothing was asked"


async def test_strangers_and_strange_paths_are_refused_in_the_dialect(stand: Stand) -> None:
    client = await stand.begin(max_calls=1)
    with pytest.raises(openai.AuthenticationError):
        await ask(stand.client(api_key="fms_" + "x" * 43), USER)
    with pytest.raises(openai.NotFoundError, match="solver, reviser"):
        await ask(client, USER, model="judge")
    with pytest.raises(openai.NotFoundError, match="/v1/responses"):
        await client.responses.retrieve("resp_1")
    with pytest.raises(openai.BadRequestError, match="not JSON"):
        await client.post("/responses", cast_to=dict, content=b"{broken")
    await ask(client, USER)
    with pytest.raises(openai.PermissionDeniedError, match="max_calls"):
        await ask(client, USER, stream=True)
    await stand.finished(reward=1)
    with pytest.raises(openai.APIStatusError, match="session has ended") as late:
        await ask(client, USER, input="more")
    assert late.value.status_code == 410


async def test_a_prompt_that_is_too_long_is_the_error_that_clients_know(stand: Stand) -> None:
    client = await stand.begin()
    stand.engine.positions, room = 5, stand.engine.positions
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client, USER)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    stand.engine.positions = room
    await ask(client, USER, input="more")
    assert len((await stand.finished(reward=1)).turns) == 1
