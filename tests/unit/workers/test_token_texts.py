"""A text is cut as the tokenizer cuts it, and nothing of it is lost."""

import pytest
from tokenizers import Tokenizer

from tests.support.chat_templates import tokenizer
from workers.models.token_texts import token_texts
from workers.models.tokenizer import tokenizer_json

WORDS = Tokenizer.from_str(tokenizer_json(("<pad>", "<bos>", "<eos>", "red", "blue")).decode())


@pytest.mark.parametrize("text", ["", "a b", "Zürich 漢字 🙂!", "<|im_start|>user\nhi<|im_end|>\n", "  two  "])
def test_the_pieces_make_up_the_text_and_have_its_ids(text: str):
    cut = token_texts(tokenizer(), text)
    assert "".join(piece.text for piece in cut) == text
    assert [piece.id for piece in cut] == tokenizer().encode(text, add_special_tokens=False).ids


def test_a_character_of_several_tokens_stands_at_its_first():
    first, *others = token_texts(tokenizer(), "🙂")
    assert first.text == "🙂"
    assert others
    assert {piece.text for piece in others} == {""}


def test_what_a_tokenizer_leaves_out_stays_beside_its_neighbour():
    assert [piece.text for piece in token_texts(WORDS, " red  blue ")] == [" red", "  blue "]


def test_a_tokenizer_of_other_words_cuts_nothing():
    assert token_texts(WORDS, "red green") == []
