"""The masks under which replies were drawn that were held to a grammar, made again along their ids.

Which ids a grammar allows is a function of the grammar, the tokenizer and the ids so far, and no rounding enters it: so
a row names its grammar, and nothing is kept of single tokens. Invariants: masks are packed bits, each different one
once in a micro-batch; a grammar of another library or tokenizer is refused, and so is a row with a token that the masks
do not allow. Both can only be another version or a fault, and would be the gradient of another policy.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer
from pydantic import ValidationError

from flexmarl.contracts.reply_grammars import LIBRARY, ReplyGrammar, digest_of
from workers import reply_masks
from workers.reply_masks import NoMasks
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.wire import TrainRow

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

FREE, UNKNOWN = 0, -1
"""Numbers of the mask of what nothing holds, and of a token that no mask could be made for."""
KEPT = 64
"""Compiled grammars of a policy; one whose own was forgotten is compiled again."""


class HeldReplies:
    """Makes the masks of one policy's replies."""

    def __init__(self, tokenizer: bytes) -> None:
        """`tokenizer`: the policy's tokenizer.json."""
        self.tokenizer = tokenizer
        self._bodies: dict[str, str] = {}
        self._readers: dict[tuple[int, tuple[int, ...]], LLTokenizer] = {}
        self._compiled: dict[tuple[str, int], LLMatcher] = {}

    def know(self, grammars: Mapping[str, str]) -> "HeldReplies":
        """Take in the texts of grammars by their digests."""
        self._bodies |= grammars
        return self

    def named(self, rows: Collection[TrainRow]) -> dict[str, str]:
        """Return the texts of the grammars that rows name, as far as they are known."""
        digests = {digest for row in rows for digest in row.grammars}
        return {digest: self._bodies[digest] for digest in sorted(digests) if digest in self._bodies}

    def begin(self, digest: str, words: int) -> LLMatcher:
        """Return where a reply begins, over so many ids. Raises TrainerRefusal where no masks can be made of it."""
        kept = self._compiled.get((digest, words))
        if kept is None:
            kept = self._compile(digest, words)
            while len(self._compiled) >= KEPT:
                self._compiled.pop(next(iter(self._compiled)))
            self._compiled[digest, words] = kept
        return kept.deep_copy()

    def _compile(self, digest: str, words: int) -> LLMatcher:
        grammar = self._checked(digest)
        try:
            reader = self._readers.get((words, grammar.stop))
            if reader is None:
                reader = reply_masks.reader(self.tokenizer.decode(), words, grammar.stop)
                self._readers[words, grammar.stop] = reader
            return reply_masks.matcher(reader, reply_masks.output_of(grammar.structured))
        except NoMasks as error:
            raise _refused(digest, f"no masks can be made of it: {error}") from error

    def _checked(self, digest: str) -> ReplyGrammar:
        body = self._bodies.get(digest)
        if body is None or digest_of(body) != digest:
            raise _refused(digest, "its text was not sent, or is another one's")
        try:
            grammar = ReplyGrammar.model_validate_json(body)
        except ValidationError as error:
            raise _refused(digest, f"it cannot be read: {error.errors()[0]['msg']}") from error
        if grammar.library != LIBRARY:
            raise _refused(digest, f"its masks are those of {grammar.library}, and this trainer has {LIBRARY}")
        own = hashlib.sha256(self.tokenizer).hexdigest()
        if grammar.tokenizer != own:
            text = f"its masks are over the tokenizer {grammar.tokenizer[:12]}, and the policy's here is {own[:12]}"
            raise _refused(digest, text)
        return grammar


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """The masks of u inputs' predictions."""

    kinds: Ints
    """[u, R]: number of each mask; FREE: anything goes."""
    table: "MaskTable"

    def part(self, start: int, stop: int) -> "HeldTokens":
        """Return the inputs `start..stop`."""
        return HeldTokens(self.kinds[start:stop], self.table)

    def allows(self, source: Ints, targets: Ints) -> npt.NDArray[np.bool_]:
        """Say of each row [n] whether all its tokens [n, R] may be where they are."""
        kinds = self.kinds[source]
        used, numbers = np.unique(kinds, return_inverse=True)
        bits = self.table.packed(used.clip(min=FREE))
        found = bits[numbers.reshape(kinds.shape), targets >> 3] >> (targets & 7).astype(np.uint8) & 1
        legal: npt.NDArray[np.bool_] = ((found == 1) & (kinds != UNKNOWN)).all(1)
        return legal


@dataclass(slots=True)
class MaskTable:
    """The different masks of a micro-batch, each once."""

    replies: HeldReplies
    words: int
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _masks: list[bytes] = field(default_factory=lambda: [b""])

    def held(self, replies: Sequence[tuple[str, Ints]]) -> list[Ints]:
        """Return the numbers of the masks along replies: each a grammar's digest, empty for none, and its ids."""
        return [self._along(digest, ids) if digest else np.full(len(ids), FREE) for digest, ids in replies]

    def packed(self, numbers: Ints) -> Bits:
        """Return [k, bytes]: the bits of each of some masks, of the first id in the lowest bit."""
        free = b"\xff" * -(-self.words // 8)
        masks = bytearray().join(self._masks[number] or free for number in numbers.tolist())
        return np.frombuffer(masks, np.uint8).reshape(len(numbers), len(free))

    def _along(self, digest: str, ids: Ints) -> Ints:
        masks, length = _masks_along(self.replies.begin(digest, self.words), ids), -(-self.words // 8)
        return np.array([self._number(mask[:length]) for mask in masks], np.int64)  # the library's may be longer

    def _number(self, mask: bytes) -> int:
        if not mask:
            return UNKNOWN
        if (known := self._numbers.get(mask)) is None:
            known = self._numbers[mask] = len(self._masks)
            self._masks.append(mask)
        return known


def _masks_along(reply: LLMatcher, ids: Ints) -> list[bytes]:
    """Return the mask before each id; empty behind one that is not allowed, or where the library's limits end."""
    found = [b""] * len(ids)
    for place, token in enumerate(ids.tolist()):
        mask = reply.compute_bitmask()
        if reply.is_error():
            break
        found[place] = mask
        if not mask[token >> 3] >> (token & 7) & 1 or not reply.consume_token(token):
            break
    return found


def _refused(digest: str, text: str) -> TrainerRefusal:
    return TrainerRefusal(RefusalCode.OTHER_GRAMMAR, f"grammar {digest[:12]} of a row: {text}")
