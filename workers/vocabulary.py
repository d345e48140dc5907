"""Text to token ids and back, for processes that never load torch.

Invariant: equals what `AutoTokenizer` makes of the same `tokenizer.json`. A word the tokenizer does not know raises
`UnknownWord`; a reply never needs re-tokenising, because engines return ids.
"""

import hashlib
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from flexmarl.language.chat_format import ChatFormat
from flexmarl.language.renderer import Renderer

BYTES_OF_TOKEN = 16
"""More than a token of any model's words has on average, in any script."""


class UnknownWord(ValueError):
    """A text holds a word outside the policy's vocabulary."""


class Codec:
    """The tokenizer of one policy."""

    def __init__(self, tokenizer_json: bytes) -> None:
        self.digest = hashlib.sha256(tokenizer_json).hexdigest()
        """Of the tokenizer, by which others tell whether theirs is the same."""
        self._tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def room(self, tokens: int) -> int:
        """Return how many of its ids a reply of so many tokens takes at most."""
        return tokens

    @property
    def size(self) -> int:
        """Number of token ids, special ones included."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the prompt ids of a text, opened as the tokenizer says (`<bos>` for factory models)."""
        try:
            return self._tokenizer.encode(text).ids
        except Exception as problem:  # tokenizers raises plain Exception for a word outside a word-level vocabulary
            raise UnknownWord(f"{text!r}: {problem}") from problem

    def ids_of_text(self, text: str) -> list[int]:
        """Return the ids of a text that stands inside another one."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of response ids, without special words unless asked."""
        return self._tokenizer.decode(ids, skip_special_tokens=not special)

    def words(self, ids: Sequence[int]) -> list[str]:
        """Return each token as people may read it, one per id."""
        return [self._tokenizer.id_to_token(number) or f"<{number}>" for number in ids]

    def ids_of(self, words: Iterable[str]) -> tuple[int, ...]:
        """Return the id of each word; for masks and stop words."""
        return tuple(self._id_of(word) for word in words)

    def _id_of(self, word: str) -> int:
        number = self._tokenizer.token_to_id(word)
        if number is None:
            raise UnknownWord(f"{word!r} is not a single word of the vocabulary")
        return int(number)


class ByteCodec(Codec):
    """Bytes in the place of tokens, where no policy of a run has a tokenizer: external models alone play it.

    What they say is recorded with an id for each of its bytes.
    """

    def __init__(self) -> None:
        super().__init__(byte_tokenizer())

    def room(self, tokens: int) -> int:
        return tokens * BYTES_OF_TOKEN


def byte_tokenizer() -> bytes:
    """Return a tokenizer, as `tokenizer.json`, of which every byte is a word."""
    words = {word: number for number, word in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().encode()


def renderer_of(tokenizer_json: bytes, chat: str) -> Renderer | None:
    """Return what renders messages for a policy; None where its model has no chat format."""
    if not chat:
        return None
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Renderer(tokenizer, ChatFormat.load(chat))
