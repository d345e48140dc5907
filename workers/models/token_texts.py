"""A text as a tokenizer cuts it. Pure: what `tokenizer.json` says and a text in, pieces of the text out."""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TokenText(msgspec.Struct, frozen=True):
    """A token and the characters of the text that it stands for; none, where it shares its character with the one
    before, of which it is a further byte."""

    id: int
    text: str


def token_texts(tokenizer: "Tokenizer", text: str) -> list[TokenText]:
    """Return the tokens of a text, whose texts make up the text without a gap: what a tokenizer leaves out before a
    token, such as a blank, belongs to that token, and what it leaves out at the end to the last one.

    None where the tokenizer has no tokens for the text: one of whole words, of which some are not in its vocabulary.
    """
    try:
        encoded = tokenizer.encode(text, add_special_tokens=False)
    except Exception:  # tokenizers raises plain Exception
        return []
    found: list[TokenText] = []
    done = 0
    for number, (_, end) in zip(encoded.ids, encoded.offsets, strict=True):
        until = max(done, end)
        found.append(TokenText(number, text[done:until]))
        done = until
    if found and done < len(text):
        found[-1] = TokenText(found[-1].id, found[-1].text + text[done:])
    return found
