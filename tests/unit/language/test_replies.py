"""What a reply says is read whole: what is no thought and no call stays in its words, and nothing raises."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.plain_tools import in_words
from flexmarl.language.replies import ReplyMarks, message_of, read, same
from flexmarl.language.templates import TemplateError, reads_tools
from tests.support.chat_templates import CHATML, MARKS, QWEN3, renderer, tokenizer

ALL = ReplyMarks(thoughts=True, calls=True)
ADD = ToolCall("add", {"a": 1, "ok": True})
WRITTEN = '<tool_call>{"name":"add","arguments":{"a":1,"ok":true}}</tool_call>'


def said(text: str, marks: ReplyMarks = ALL) -> Message:
    return message_of(read(text, marks))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7", Message("assistant", "7")),
        (" \n", Message("assistant", " \n")),
        ("", Message("assistant")),
        ("<think>\nso\n</think>\n\n7", Message("assistant", "7", "so")),
        ("<think>\n\n</think>\n\n7", Message("assistant", "7")),
        ("<think>so", Message("assistant", "", "so")),
        ("7<think>so</think>", Message("assistant", "7<think>so</think>")),
        ("<think>so</think>7</think>8", Message("assistant", "7</think>8", "so")),
        (WRITTEN, Message("assistant", tool_calls=(ADD,))),
        (f"Wait.\n{WRITTEN}\n{WRITTEN}", Message("assistant", "Wait.", tool_calls=(ADD, ADD))),
        (f"<think>\n{WRITTEN}\n</think>\n{WRITTEN}", Message("assistant", "", WRITTEN, (ADD,))),
        (f"{WRITTEN} behind", Message("assistant", " behind", tool_calls=(ADD,))),
        (
            '<tool_call>\n{"name": "say", "arguments": {"text": "</tool_call>"}}\n</tool_call>',
            Message("assistant", tool_calls=(ToolCall("say", {"text": "</tool_call>"}),)),
        ),
    ],
)
def test_a_reply_is_read(text: str, message: Message) -> None:
    assert said(text) == message


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": {"a": 1}',
        '<tool_call>{"name": "add", "arguments": {"a": 1}}',
        '<tool_call>{"name": "add"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {}, "id": 7}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1, "a": 2}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": "\\ud83d"}}</tool_call>',
        "<tool_call>" + '{"a":' * 100_000,
        "<tool_call>" + '{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>",
        "<tool_call>\n<function=add>\n</function>\n</tool_call>",
        "<tool_call>[]</tool_call>",
        "</tool_call>",
    ],
)
def test_what_does_not_read_as_a_call_stays_in_the_words(text: str) -> None:
    assert said(text) == Message("assistant", text)
    assert said(f"{text}\n{WRITTEN}") == Message("assistant", text, tool_calls=(ADD,))


PIECES = st.lists(st.sampled_from([*MARKS, WRITTEN, "{", "}", '"name"', ":", '"', "\\u", "add", "\n", " ", "7", "é"]))


@given(PIECES, st.booleans())
@settings(max_examples=500, deadline=None)
def test_no_letter_of_a_reply_is_lost(pieces: list[str], thinking: bool) -> None:
    text = "".join(pieces)
    message = said(text, ReplyMarks(thoughts=True, calls=True, thinking=thinking))
    kept = len("".join((message.content + message.reasoning).split())) + len(message.tool_calls) * len(WRITTEN)
    assert kept >= len("".join(text.split())) - len("<think></think>")


def test_replies_that_differ_say_so() -> None:
    assert same(read(WRITTEN, ALL), read(WRITTEN.replace(":", " :\n"), ALL))
    assert not same(read(WRITTEN, ALL), read(WRITTEN.replace("true", "1"), ALL))
    assert not same(read(WRITTEN, ALL), read(WRITTEN.replace(":1", ":1.0"), ALL))
    assert not same(read(WRITTEN, ALL), read(WRITTEN.replace("add", "sub"), ALL))
    assert not same(read(f"a{WRITTEN}", ALL), read(f"{WRITTEN}a", ALL))
    assert not same(read("<think>a</think>b", ALL), read("<think>c</think>b", ALL))
    assert not same(read("<think></think>b", ALL), read("b", ALL))
    assert not same(read("<think>a", ALL), read("<think>a</think>", ALL))


def test_thoughts_are_apart_only_where_the_template_keeps_them_apart() -> None:
    text = f"<think>so</think>7\n{WRITTEN}"
    plain, marked = (tokenizer(marks).encode(text, add_special_tokens=False).ids for marks in ((), MARKS))
    assert renderer(QWEN3, MARKS).parse(marked) == Message("assistant", "7", "so", (ADD,))
    assert renderer(CHATML).parse(plain) == Message("assistant", "<think>so</think>7", tool_calls=(ADD,))


def test_a_reply_that_begins_within_a_thought_is_read_so() -> None:
    opening = CHATML.replace("assistant\n'", "assistant\n<think>\n'") + "{# </think> #}"
    ids = tokenizer().encode("so</think>7", add_special_tokens=False).ids
    assert renderer(opening).parse(ids) == Message("assistant", "7", "so")


def test_a_template_says_whether_it_reads_tools() -> None:
    assert reads_tools(QWEN3)
    assert reads_tools("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}")
    assert not reads_tools(CHATML)
    assert not reads_tools("{{ message.tools }} tools")
    with pytest.raises(TemplateError):
        reads_tools("{% if %}")


def test_calls_are_left_as_they_are_for_a_template_with_another_form_of_them() -> None:
    other = QWEN3.replace("""'<tool_call>\\n{"name": "'""", """'<tool_call>\\n<function="'""")
    ids = tokenizer(MARKS).encode(WRITTEN, add_special_tokens=False).ids
    assert renderer(other, MARKS).parse(ids) == Message("assistant", WRITTEN)
    refusing = QWEN3 + "{% if messages[-1].tool_calls %}{{ raise_exception('no calls') }}{% endif %}"
    assert renderer(refusing, MARKS).parse(ids) == Message("assistant", WRITTEN)


def test_without_tools_nothing_is_described() -> None:
    asked = (Message("user", "2+3?"), Message("assistant", "5"))
    assert in_words(asked, ()) == asked
