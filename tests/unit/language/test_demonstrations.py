"""What is learned of a conversation: the words of the assistant with the ends of its turns, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.language.dataset_rows import DatasetRow
from flexmarl.language.demonstrations import DemonstratedChain, chains_of, conversation_of
from flexmarl.language.messages import Message
from flexmarl.language.templates import PLAIN, TemplateError, render_text
from tests.support.chat_templates import CHATML, END, FORGETTING, MARKS, QWEN3, SMOLLM2, TRIMMING, renderer, tokenizer

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=20)
CHAT = (Message("system", "Be brief."), Message("user", "2+3?"), Message("assistant", "5"),
        Message("user", "3+4?"), Message("assistant", "7, I think"))  # fmt: skip


def texts(chain: DemonstratedChain, marks: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    words = tokenizer(marks)
    return [
        (words.decode(list(read), skip_special_tokens=False), words.decode(list(sampled), skip_special_tokens=False))
        for read, sampled in zip(chain.read, chain.sampled, strict=True)
    ]


def test_assistant_turns_and_their_ends_are_sampled_and_all_else_is_read() -> None:
    [chain] = chains_of(renderer(SMOLLM2), CHAT)
    assert texts(chain) == [
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n",
            "5" + END,
        ),
        ("\n<|im_start|>user\n3+4?<|im_end|>\n<|im_start|>assistant\n", "7, I think" + END),
    ]  # fmt: skip
    assert (chain.length, chain.learned) == (sum(map(len, (*chain.read, *chain.sampled))), len("57, I think") + 2)


def test_a_template_that_closes_thoughts_has_them_among_what_is_sampled() -> None:
    chains = chains_of(renderer(QWEN3, MARKS), CHAT)
    [first], [last] = (texts(chain, MARKS) for chain in chains)
    assert first[1] == "<think>\n\n</think>\n\n5" + END
    assert last[0].endswith(
        "<|im_start|>assistant\n5<|im_end|>\n<|im_start|>user\n3+4?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert last[1] == "<think>\n\n</think>\n\n7, I think" + END


def test_thoughts_that_the_prompt_has_opened_and_closed_are_read() -> None:
    chains = chains_of(renderer(QWEN3, MARKS, enable_thinking=False), CHAT[1:3])
    [[(read, sampled)]] = (texts(chain, MARKS) for chain in chains)
    assert read.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert sampled == "5" + END


def test_a_conversation_that_is_written_otherwise_as_it_goes_on_is_several_chains() -> None:
    said = (CHAT[1], Message("assistant", "<think>so</think>5"), *CHAT[3:])
    first, second = (texts(chain) for chain in chains_of(renderer(FORGETTING), said))
    assert [sampled for _, sampled in (*first, *second)] == ["<think>so</think>5" + END, "7, I think" + END]
    assert "so" not in second[0][0]


def test_a_thought_that_the_prompt_has_opened_is_not_opened_again() -> None:
    opening = FORGETTING.replace("<|im_start|>assistant\n'", "<|im_start|>assistant\n<think>\n'")
    [chain] = chains_of(renderer(opening), (CHAT[1], Message("assistant", "<think>\nso\n</think>\n\n5")))
    [(read, sampled)] = texts(chain)
    assert read.endswith("assistant\n<think>\n")
    assert sampled == "so\n</think>\n\n5" + END


def test_a_template_without_ends_gets_the_first_end_of_the_model() -> None:
    [chain] = chains_of(renderer(PLAIN), CHAT[1:3])
    assert texts(chain) == [("user: 2+3?\nassistant: ", "5" + END)]


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), st.sampled_from([CHATML, SMOLLM2]))
@settings(max_examples=100, deadline=None)
def test_what_is_read_and_sampled_is_the_conversation_as_the_template_writes_it(
    turns: list[tuple[str, str]], template: str
) -> None:
    said = [Message(role, text) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)]
    chains = chains_of(renderer(template), said)
    assert "".join(text for chain in chains for pair in texts(chain) for text in pair) + "\n" == render_text(
        template, said, reply=False
    )
    assert [sampled for chain in chains for _, sampled in texts(chain)] == [answer + END for _, answer in turns]


def test_blanks_that_the_template_trims_are_not_sampled() -> None:
    [chain] = chains_of(renderer(TRIMMING), (CHAT[1], Message("assistant", "  5 \n")))
    assert texts(chain)[0][1] == "5" + END


def test_what_the_template_refuses_is_refused() -> None:
    with pytest.raises(TemplateError):
        chains_of(renderer("{{ raise_exception('no') }}"), CHAT)


ROW = DatasetRow(
    CHAT[:2],
    "5",
    {
        "solution": "It is 5.",
        "number": 5,
        "blank": " ",
        "chat": [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))],
        "tools": [{"role": "tool", "content": "b"}, {"role": "assistant", "content": "c"}],
        "asked": [{"role": "user", "content": "a"}],
    },
)  # fmt: skip


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("", (*CHAT[:2], Message("assistant", "5"))),
        ("solution", (*CHAT[:2], Message("assistant", "It is 5."))),
        ("chat", (Message("user", "a"), Message("assistant", "b"))),
        *((name, ()) for name in ("number", "blank", "tools", "asked", "absent")),
    ],
)
def test_a_row_demonstrates_its_answer_or_what_a_column_says(column: str, said: tuple[Message, ...]) -> None:
    assert conversation_of(ROW, column) == said


def test_a_row_without_an_answer_demonstrates_nothing() -> None:
    assert conversation_of(DatasetRow(CHAT[:2])) == ()
