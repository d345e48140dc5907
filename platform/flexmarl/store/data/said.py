"""What was said in an episode: kept as one text, and found by words without an index.

An index of words costs its writer milliseconds per episode. Beside the text stands a Bloom filter of its trigrams
instead, a fifth of its size or less: a search reads the filters, and the texts of those alone that may match.

Words are letters and digits in lower case; anything else parts them, and is a blank in trigrams.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

PARTS = "\x1e"
"""Stands between turns; a text itself has none."""
MOST = 100_000
"""Characters of an episode that are kept."""
_UNFIT = str.maketrans({PARTS: " ", "\0": " "})
_WORD = re.compile(r"[^\W_]+")
_ASCII = {at: " " for at in range(128) if not chr(at).isalnum()}
_FEWEST, _LARGEST = 8, 1024
"""Bytes of a filter, always a power of two; two to four bits for each trigram, and small enough to stay in the row."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(20), np.uint64(42))
"""Where in the product the places of a trigram's two bits begin; each has 22 bits."""
_PLACES = np.uint64((1 << 22) - 1)


def words(text: str) -> list[str]:
    """Return the words of a text."""
    text = text.lower()
    return text.translate(_ASCII).split() if text.isascii() else _WORD.findall(text)


def kept(turns: Sequence[str]) -> tuple[str, bytes]:
    """Return the text of some turns, and its filter; where they are too long all are cut, each to its equal share."""
    if sum(map(len, turns)) > MOST:
        share = MOST // len(turns)
        turns = [turn[:share] for turn in turns]
    text = PARTS.join(turn.translate(_UNFIT) for turn in turns)
    return text, marks(text)


def parted(text: str, turns: int) -> list[str]:
    """Return the turns of a text; empty ones where it has none."""
    found = text.split(PARTS) if text else []
    return (found + [""] * turns)[:turns]


def marks(text: str) -> bytes:
    """Return the Bloom filter of a text's trigrams."""
    hashes = _hashes(f" {'  '.join(dict.fromkeys(words(text)))} ")
    size = _FEWEST
    while size < min(len(hashes) // 4, _LARGEST):
        size *= 2
    bits = np.zeros(8 * size, dtype=bool)
    for shift in _SHIFTS:
        bits[hashes >> shift & _PLACES & np.uint64(8 * size - 1)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def places(word: str, *, whole: bool) -> Iterator[int]:
    """Return the bits that a filter with a word has, before they are bounded by its length."""
    for one in _hashes(f" {word}{' ' if whole else ''}"):
        for shift in _SHIFTS:
            yield int(one >> shift & _PLACES)


def _hashes(text: str) -> "np.ndarray":
    """Return a number for each trigram of a text."""
    points = np.frombuffer(text.encode("utf-32-le", "replace"), dtype="<u4").astype(np.uint64)
    trigrams = points[:-2] << np.uint64(42) ^ points[1:-1] << np.uint64(21) ^ points[2:]
    return trigrams * _SPREAD
