"""Ids of chats as messages, by the tokenizer alone: every family of templates, and what nobody can be named in."""

import pytest
from tokenizers import AddedToken

from flexmarl.controlplane.telemetry.trajectories.chat import context, reply
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.templates import PLAIN
from tests.support.chat_templates import CHATML, END, MARKS, QWEN3, SMOLLM2, renderer, tokenizer

TALK = (
    Message("system", "Be brief.\n\nuser: is a word."),
    Message("user", "What is 2+3?"),
    Message("assistant", "5"),
    Message("user", "system\nis a word too"),
)
HEADERS = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] + '<|eot_id|>' }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
TAGS = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
)


def read(template, talk=TALK, specials=()):
    made = renderer(template, MARKS)
    made._tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    return [(one["speaker"], one["text"]) for one in context(made._tokenizer, made.render(talk))]


@pytest.mark.parametrize(
    ("template", "specials"),
    [
        (CHATML, ()),
        (QWEN3, ()),
        (HEADERS, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
        (TAGS, ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")),
    ],
)
def test_messages_are_read_back(template, specials) -> None:
    assert read(template, specials=specials) == [(one.role, one.content) for one in TALK]


def test_a_template_adds_its_own_words_and_they_are_shown() -> None:
    [(speaker, text), (_, asked)] = read(SMOLLM2, TALK[1:2])
    assert (speaker, asked) == ("system", "What is 2+3?")
    assert "SmolLM" in text


def test_lines_of_the_plain_template_name_who_speaks() -> None:
    assert read(PLAIN, TALK[1:3]) == [("user", "What is 2+3?"), ("assistant", "5")]


def test_what_goes_on_behind_a_reply_is_read_as_well() -> None:
    words = tokenizer()
    ids = words.encode("\n<|im_start|>user\nAgain<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
    assert context(words, ids) == [{"speaker": "user", "text": "Again"}]


def test_where_nobody_is_named_there_are_no_messages() -> None:
    words = tokenizer()
    assert context(words, words.encode("red round object").ids) == []
    assert context(None, [1, 2]) == []


def test_a_reply_is_parted_into_thoughts_words_and_calls() -> None:
    words = tokenizer(MARKS)
    text = '<think>\nadd\n</think>\n\nSo<tool_call>\n{"name": "sum", "arguments": {"of": [2, 3]}}\n</tool_call>'
    ids = words.encode(text + END).ids
    found = reply(words, ids)
    assert (found.reasoning, found.tool_calls) == ("add", (ToolCall("sum", {"of": [2, 3]}),))
    assert found.content.strip() == "So"
    begun = reply(words, words.encode("still thinking</think>done").ids)
    assert (begun.reasoning, begun.content) == ("still thinking", "done")
    assert reply(words, words.encode("no < mark {").ids).content == "no < mark {"
    assert reply(None, [4, 5]).content == "4 5"
