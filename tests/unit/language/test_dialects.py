"""Answers that come bit by bit say in every dialect what they say in one piece, and never take back a word."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flexmarl.language.dialects import chat, messages, responses
from flexmarl.language.dialects.calls import CallAnswer, CallRefused
from flexmarl.language.messages import Message
from flexmarl.language.replies import ReplyMarks, certain, message_of, read

BITS = (
    "<think>", "</think>", "<tool_call>", '{"name": "add", "arguments": {"a": 1}}', "</tool_call>",
    "\n", " ", "a", "b c", "<t", "é", "\n\n", "</th",
)  # fmt: skip
MARKS = ReplyMarks(thoughts=True, calls=True)


def texts(count: int) -> Iterator[tuple[str, ReplyMarks]]:
    chance = random.Random(7)
    for _ in range(count):
        marks = ReplyMarks(chance.random() < 0.5, chance.random() < 0.7, chance.random() < 0.3)
        yield "".join(chance.choices(BITS, k=chance.randint(0, 8))), marks


def test_what_is_certain_of_a_reply_stays_so_whatever_comes() -> None:
    for text, marks in texts(3000):
        message = message_of(read(text, marks))
        for cut in range(len(text) + 1):
            thought, words = certain(text[:cut], marks)
            assert message.reasoning.startswith(thought), (text, marks, cut)
            assert message.content.startswith(words), (text, marks, cut)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("<think>\nTwo", ("Two", "")),
        ("<think>\nTwo\n</thi", ("Two", "")),
        ("<think>\nTwo\n</think>\n\nFive", ("Two", "Five")),
        ("I add <tool", ("", "I add")),
        ("I add.<tool_call>\n{", ("", "I add.")),
        ("caf\ufffd", ("", "caf")),
    ],
)
def test_as_much_as_possible_is_certain(text, known) -> None:
    assert certain(text, MARKS) == known


def call_of(dialect: Any) -> Any:
    said = {"input": "2+3?"} if dialect is responses else {"messages": [{"role": "user", "content": "2+3?"}]}
    return dialect.read({"model": "solver", "max_tokens": 9, **said} if dialect is messages else {"model": "s", **said})


def events_of(stream: Iterator[bytes]) -> list[dict[str, Any]]:
    return [json.loads(event.partition(b"data: ")[2]) for event in stream]


def in_bits(dialect: Any, kind: Any, text: str, finish: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Tell a reply letter by letter; returns it in one piece, and the events."""
    message = message_of(read(text, MARKS))
    call, first = call_of(dialect), CallAnswer("1", Message("assistant"), "", 5, 0, 0)
    answer = replace(first, message=message, finish=finish, tokens=len(text))
    told, said = kind(call, first), ("", "")
    found = events_of(told.opened())
    for cut in range(len(text)):
        new = certain(text[:cut], MARKS)
        found += events_of(told.more(new[0][len(said[0]) :], new[1][len(said[1]) :]))
        said = new
    return dialect.whole(call, answer), found + events_of(told.ended(answer))


def test_responses_told_letter_by_letter_are_those_in_one_piece() -> None:
    for place, (text, _) in enumerate(texts(400)):
        whole, events = in_bits(responses, responses.ResponseEvents, text, ("stop", "length")[place % 2])
        assert events[-1]["response"] == whole
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert [{**one, "status": ""} for one in done] == [{**one, "status": ""} for one in whole["output"]]
        for index, item in enumerate(whole["output"]):
            told = [one["delta"] for one in events if one.get("output_index") == index and "delta" in one]
            words = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            assert "".join(told) == words


def test_messages_told_letter_by_letter_are_those_in_one_piece() -> None:
    for place, (text, _) in enumerate(texts(400)):
        whole, events = in_bits(messages, messages.MessageEvents, text, ("stop", "length")[place % 2])
        blocks: list[dict[str, Any]] = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "pieces": ""})
            if event["type"] == "content_block_delta" and event["delta"]["type"] != "signature_delta":
                blocks[event["index"]]["pieces"] += next(v for k, v in event["delta"].items() if k != "type")
        said = [one["pieces"] if one["type"] != "tool_use" else json.loads(one["pieces"]) for one in blocks]
        assert said == [one.get("text", one.get("thinking", one.get("input"))) for one in whole["content"]]
        assert [event["type"] for event in events].count("content_block_stop") == len(blocks)
        assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]


def test_a_door_that_samples_as_it_is_asked_heeds_more_and_names_what_it_refuses() -> None:
    rules = chat.RULES.honouring({"temperature", "n"}, {"logit_bias": (None, {})})
    body = {"model": "s", "messages": [{"role": "user", "content": "?"}]}
    assert chat.read({**body, "temperature": 9, "n": 5, "logit_bias": {}}, rules).model == "s"
    with pytest.raises(CallRefused, match="logit_bias: agents of runs do not support this value"):
        chat.read({**body, "logit_bias": {"1": 2}}, rules)
    with pytest.raises(CallRefused, match="n: agents of runs do not support"):
        chat.read({**body, "n": 5})
