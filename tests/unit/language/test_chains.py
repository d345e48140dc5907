"""A chain is what the engine saw, token by token; it breaks only where the template writes history differently."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.language.chains import Chain
from flexmarl.language.messages import Message
from flexmarl.language.renderer import Break
from flexmarl.language.templates import TemplateError, render_text
from tests.support.chat_templates import CHATML, END, FORGETTING, MARKS, QWEN3, START, TRIMMING, renderer, tokenizer
from tests.support.conversations import TOOLS

WORDS = tokenizer()
STOP = WORDS.token_to_id(END)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), max_size=20)


def ids(text: str) -> tuple[int, ...]:
    return tuple(WORDS.encode(text, add_special_tokens=False).ids)


def text(numbers: tuple[int, ...]) -> str:
    return WORDS.decode(list(numbers), skip_special_tokens=False)


@given(st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=5), st.sampled_from([CHATML, TRIMMING]))
@settings(max_examples=300, deadline=None)
def test_every_prompt_is_what_was_seen_and_said_before(turns: list[tuple[str, str, bool]], template: str) -> None:
    chain, seen, said = Chain(renderer(template)), (), []
    for asked, answer, ended in turns:
        prompt = chain.ask([Message("user", asked)])
        assert prompt[: len(seen)] == seen
        sampled = (*ids(answer), *([STOP] if ended else []))
        assert chain.answer(sampled).content == answer
        seen = prompt + sampled
        assert chain.ids == seen
        said += [Message("user", asked), Message("assistant", answer)]
    assert (chain.breaks, chain.number) == ((), 0)
    if template is CHATML:
        closed = "" if turns[-1][2] else END
        assert text(seen) + closed + "\n" == render_text(template, said, reply=False)


def test_a_template_that_leaves_out_thoughts_breaks_the_chain_and_says_why() -> None:
    chain = Chain(renderer(FORGETTING))
    chain.ask([Message("user", "2+3?")])
    chain.answer((*ids("5"), STOP))
    chain.ask([Message("user", "3+4?")])
    assert chain.breaks == ()
    assert chain.answer((*ids("<think>seven?</think>7"), STOP)) == Message("assistant", "7", reasoning="seven?")
    prompt = chain.ask([Message("user", "4+5?")])
    assert (chain.breaks, chain.number) == (("thoughts_rewritten",), 1)
    assert "seven?" not in text(prompt)
    assert text(prompt).endswith("4+5?<|im_end|>\n<|im_start|>assistant\n")
    chain.answer((*ids("9"), STOP))
    assert chain.ids == (*prompt, *ids("9"), STOP)


def test_a_template_that_looks_for_thoughts_in_the_words_is_given_them_there() -> None:
    chain = Chain(renderer(CHATML + "{# keeps </think> #}"))
    chain.ask([Message("user", "2+3?")])
    assert chain.answer((*ids("<think>\nso\n</think>\n\n5"), STOP)) == Message("assistant", "5", reasoning="so")
    assert "assistant\n<think>\nso\n</think>\n\n5<|im_end|>" in text(chain.ask([Message("user", "3+4?")]))
    assert chain.breaks == ()


def test_a_turn_whose_end_the_template_does_not_show_breaks_the_chain() -> None:
    chain = Chain(renderer("{% for m in messages %}{{ m.content + ' ' }}{% endfor %}"))
    chain.ask([Message("user", "a")])
    chain.answer((*ids("b"), STOP))
    assert text(chain.ask([Message("user", "c")])) == "a b c "
    assert chain.breaks == ("turn_not_closed",)


def test_tools_that_change_rewrite_the_history() -> None:
    chain = Chain(renderer(QWEN3, MARKS))
    chain.ask([Message("user", "2+3?")], TOOLS)
    chain.answer((*ids("5"), STOP))
    chain.ask([Message("user", "3+4?")], TOOLS)
    assert chain.breaks == ()
    chain.answer((*ids("7"), STOP))
    prompt = chain.ask([Message("user", "4+5?")], TOOLS[:1])
    assert chain.breaks == (Break.HISTORY_REWRITTEN,)
    assert chain.breaks_by_cause == {Break.HISTORY_REWRITTEN: 1}
    assert '"name": "finden"' not in text(prompt)


def test_a_reply_that_ended_by_itself_within_a_thought_breaks_the_chain_and_one_that_was_cut_off_does_not() -> None:
    words = tokenizer(MARKS)
    sampled = tuple(words.encode("<think>\nso", add_special_tokens=False).ids)
    for end, breaks in (((STOP,), (Break.THOUGHTS_REWRITTEN,)), ((), ())):
        chain = Chain(renderer(QWEN3, MARKS))
        before = chain.ask([Message("user", "2+3?")])
        assert chain.answer((*sampled, *end)) == Message("assistant", reasoning="so")
        prompt = chain.ask([Message("tool", "5")])
        assert chain.breaks == breaks
    behind = words.decode(list(prompt[len(before) + len(sampled) :]), skip_special_tokens=False)
    assert behind.startswith(
        "\n</think>\n\n<|im_end|>\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>"
    )


def test_a_special_token_within_a_reply_is_part_of_what_was_said() -> None:
    chain = Chain(renderer())
    chain.ask([Message("user", "2+3?")])
    assert chain.answer((*ids(f"5{START}6"), STOP)).content == f"5{START}6"
    prompt = chain.ask([Message("user", "3+4?")])
    assert text(prompt) == render_text(CHATML, chain.said)
    assert chain.breaks == ()


def test_what_a_template_refuses_changes_nothing() -> None:
    chain = Chain(renderer(CHATML + "{% if messages|length > 3 %}{{ raise_exception('too many') }}{% endif %}"))
    chain.ask([Message("user", "a")])
    chain.answer((*ids("b"), STOP))
    before = copy.copy(chain)
    with pytest.raises(TemplateError, match="too many"):
        chain.ask([Message("user", "c"), Message("user", "d")])
    assert chain == before
    assert "c<|im_end|>" in text(chain.ask([Message("user", "c")]))


def test_a_copy_goes_its_own_way() -> None:
    chain = Chain(renderer())
    chain.ask([Message("user", "a")])
    other = copy.copy(chain)
    chain.answer((*ids("b"), STOP))
    other.answer((*ids("c"), STOP))
    assert "b<|im_end|>" in text(chain.ask([Message("user", "d")]))
    assert "c<|im_end|>" in text(other.ask([Message("user", "d")]))


def test_a_chain_that_waits_for_an_answer_cannot_be_asked() -> None:
    chain = Chain(renderer())
    chain.ask([Message("user", "a")])
    with pytest.raises(ValueError, match="waits for an answer"):
        chain.ask([Message("user", "b")])


def test_a_conversation_that_became_too_long_goes_on_without_its_oldest_messages() -> None:
    chain = Chain(renderer(CHATML))
    asked = [Message("system", "Be terse."), Message("user", "What is 2+3?")]
    most = len(chain.ask(asked)) + 40
    seen: list[tuple[int, ...]] = []
    for turn in range(6):
        chain.answer((*ids(f"answer {turn}"), STOP))
        before, number = chain.ids, chain.number
        prompt = chain.ask([Message("user", f"And {turn}+4?")], most=most)
        assert len(prompt) <= most
        if chain.number == number:
            assert prompt[: len(before)] == before
        else:
            seen.append(before)
            assert text(prompt).startswith("<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nAnd ")
        assert text(prompt) == render_text(CHATML, chain.said)
    assert chain.breaks == ("shortened",) * len(seen)
    assert 0 < len(seen) < 6


def test_a_last_message_that_is_too_long_alone_is_left_to_the_engine() -> None:
    chain = Chain(renderer(CHATML))
    chain.ask([Message("user", "2+3?")])
    chain.answer((*ids("5"), STOP))
    before = chain.ids
    assert chain.ask([Message("user", "why? " * 50)], most=40)[: len(before)] == before
    assert chain.breaks == ()


def test_what_a_seat_is_first_asked_is_shortened_without_a_break() -> None:
    chain = Chain(renderer(CHATML))
    said = [Message("user", "long ago " * 20), Message("assistant", "yes"), Message("user", "2+3?")]
    assert "long ago" not in text(chain.ask(said, most=80))
    assert chain.breaks == ()
