"""Calls that say what their reply must be, by the unmodified clients: what engines are asked, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import psycopg
import pytest
from pydantic import BaseModel

from flexmarl.contracts.reply_grammars import LIBRARY
from flexmarl.contracts.wire import EpisodeStatus
from tests.support.chat_templates import CHATML
from tests.support.gateway_stand import Stand, standing
from workers.rollout.turns import TurnRefusedError

pytestmark = pytest.mark.services

USER: Any = {"role": "user", "content": "Who?"}
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
THINKING = CHATML.replace("<|im_start|>assistant\n'", "<|im_start|>assistant\n<think>\n'").replace(
    "message['content']", "(message['content'].split('</think>')[-1])"
)
"""Opens a thought in front of each reply."""


class Person(BaseModel):
    name: str
    age: int


BOB = Person(name="Bob", age=7)
SAID = BOB.model_dump_json()


@pytest.fixture
async def stand(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    async with standing(store_conn, store_url) as made:
        yield made


def asked(stand: Stand, place: int = -1) -> dict[str, Any]:
    """Return what an engine was asked a reply to be."""
    held: dict[str, Any] = json.loads(stand.engine.asked[place].sampling.structured)
    return held


async def test_the_formats_of_each_dialect_reach_the_engine_and_come_back_parsed(stand: Stand) -> None:
    stand.engine.texts = [SAID] * 5
    client = await stand.begin()
    chat = await client.chat.completions.parse(model="solver", messages=[USER], response_format=Person)
    assert chat.choices[0].message.parsed == BOB
    schema = asked(stand)
    assert schema["type"] == "json_schema"
    assert schema["of"]["required"] == ["name", "age"]
    said = {"role": "assistant", "content": SAID}
    async with client.chat.completions.stream(
        model="solver", messages=[USER, said, USER], response_format=Person
    ) as stream:
        assert (await stream.get_final_completion()).choices[0].message.parsed == BOB
    response = await client.responses.parse(model="reviser", input="Who?", text_format=Person)
    assert response.output_parsed == BOB
    assert response.text is not None
    assert response.text.format.type == "json_schema", "the answer says what it was held to"
    shape = {"type": "json_schema", "schema": Person.model_json_schema()}
    message = await stand.anthropic().messages.create(
        model="reviser", max_tokens=90, messages=[USER], output_config={"format": shape}
    )
    assert Person.model_validate_json(message.content[0].text) == BOB
    assert asked(stand)["of"] == shape["schema"]
    await client.chat.completions.create(model="solver", messages=[USER], response_format={"type": "json_object"})
    assert asked(stand)["of"] == {"type": "object"}
    await client.chat.completions.create(model="solver", messages=[USER], response_format={"type": "text"})
    assert stand.engine.asked[-1].sampling.structured == ""
    attempt = await stand.finished(reward=1)
    assert [turn.begins for turn in attempt.turns if turn.role == "solver"][:2] == [0, 0], "one chain, two formats"


async def test_json_that_was_cut_off_says_so_in_each_dialect(stand: Stand) -> None:
    stand.engine.texts = [SAID] * 3
    client = await stand.begin()
    with pytest.raises(openai.LengthFinishReasonError):
        await client.chat.completions.parse(model="solver", messages=[USER], response_format=Person, max_tokens=5)
    shape: Any = {"format": {"type": "json_schema", "name": "x", "schema": Person.model_json_schema()}}
    response = await client.responses.create(model="solver", input="Who?", text=shape, max_output_tokens=5)
    assert response.status == "incomplete"
    shape["format"].pop("name")
    message = await stand.anthropic().messages.create(
        model="solver", max_tokens=5, messages=[USER], output_config=shape
    )
    assert message.stop_reason == "max_tokens"
    assert SAID.startswith(message.content[0].text)
    await stand.finished(reward=1)


async def test_a_trained_seat_refuses_formats_and_its_frozen_neighbour_takes_them(stand: Stand) -> None:
    stand.engine.texts = [SAID]
    client = await stand.begin(trained=("solver",))
    shape: Any = {"type": "json_object"}
    with pytest.raises(
        openai.BadRequestError, match=r"response_format: solver is trained.*trainable: false"
    ) as refused:
        await client.chat.completions.create(model="solver", messages=[USER], response_format=shape)
    assert refused.value.param == "response_format"
    with pytest.raises(openai.BadRequestError) as other:
        await client.responses.create(model="solver", input="Who?", text={"format": shape})
    assert other.value.param == "text/format"
    with pytest.raises(anthropic.BadRequestError, match="output_config/format: solver is trained"):
        await stand.anthropic().messages.create(
            model="solver", max_tokens=9, messages=[USER],
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        )  # fmt: skip
    assert stand.engine.asked == []
    await client.chat.completions.create(model="reviser", messages=[USER], response_format=shape)
    attempt = await stand.finished(reward=1)
    assert (attempt.status, len(attempt.turns)) == (EpisodeStatus.FINISHED, 1), "what was refused cost nothing"


async def test_a_trained_seat_may_learn_formats_and_its_frozen_neighbour_is_held_to_them(stand: Stand) -> None:
    stand.engine.texts = ["no JSON", SAID, SAID]
    client = await stand.begin(trained=("solver",), formats="learned")
    shape: Any = {"type": "json_object"}
    free = await client.chat.completions.create(model="solver", messages=[USER], response_format=shape)
    assert free.choices[0].message.content == "no JSON", "the reply is what was sampled"
    parsed = await client.chat.completions.parse(model="solver", messages=[USER], response_format=Person)
    assert parsed.choices[0].message.parsed == BOB
    assert [request.sampling.structured for request in stand.engine.asked] == ["", ""]
    await client.chat.completions.create(model="reviser", messages=[USER], response_format=shape)
    assert asked(stand)["type"] == "json_schema"
    attempt = await stand.finished(reward=1)
    assert (attempt.status, len(attempt.turns)) == (EpisodeStatus.FINISHED, 3)


async def test_a_trained_seat_may_be_held_to_formats_which_its_turns_then_name(stand: Stand) -> None:
    stand.engine.texts = [SAID, "free", SAID]
    client = await stand.begin(trained=("solver",), formats="held")
    parsed = await client.chat.completions.parse(model="solver", messages=[USER], response_format=Person)
    assert parsed.choices[0].message.parsed == BOB
    said = [USER, {"role": "assistant", "content": SAID}, USER]
    await client.chat.completions.create(model="solver", messages=said)
    await client.chat.completions.parse(model="reviser", messages=[USER], response_format=Person)
    held, free, frozen = (request.sampling for request in stand.engine.asked)
    assert (json.loads(held.structured)["of"]["required"], held.library) == (["name", "age"], LIBRARY)
    assert (free.structured, free.library) == ("", "")
    assert (frozen.structured, frozen.library) == (held.structured, ""), "no trainer makes these masks again"
    with pytest.raises(openai.BadRequestError, match="calls no tools"):
        await client.chat.completions.create(
            model="solver", messages=[USER], tools=TOOLS, response_format={"type": "json_object"}
        )
    attempt = await stand.finished(reward=1)
    turns = [turn for turn in attempt.turns if turn.role == "solver"]
    assert [turn.begins for turn in turns] == [0, 0], "one chain, one of its turns held"
    assert [turn.structured for turn in turns] == [held.structured, ""]
    assert turns[0].stop == stand.engine.asked[0].stop


async def test_what_begins_within_a_thought_cannot_be_held_to_a_format(stand: Stand) -> None:
    stand.template = THINKING
    client = await stand.begin()
    with pytest.raises(openai.BadRequestError, match="response_format: replies of solver begin within a thought"):
        await client.chat.completions.create(model="solver", messages=[USER], response_format={"type": "json_object"})
    assert (await stand.finished(reward=1)).turns == []


async def test_tools_go_with_a_format_where_they_are_not_to_be_called(stand: Stand) -> None:
    stand.engine.texts = [SAID]
    client = await stand.begin()
    both: Any = {"tools": TOOLS, "response_format": {"type": "json_object"}}
    with pytest.raises(openai.BadRequestError, match=r"calls no tools.*tool_choice"):
        await client.chat.completions.create(model="solver", messages=[USER], **both)
    await client.chat.completions.create(model="solver", messages=[USER], tool_choice="none", **both)
    assert asked(stand)["of"] == {"type": "object"}
    await stand.finished(reward=1)


async def test_a_format_that_an_engine_refuses_is_the_call_s_fault(stand: Stand) -> None:
    stand.engine.refusal = TurnRefusedError("too_complex", "structured: solver cannot go on; say less in it")
    client = await stand.begin()
    with pytest.raises(openai.BadRequestError, match="structured: solver cannot go on"):
        await client.chat.completions.create(model="solver", messages=[USER], response_format={"type": "json_object"})
    attempt = await asyncio.wait_for(stand.ended(), 60)
    assert attempt.status is EpisodeStatus.FAILED
