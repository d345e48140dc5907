"""Rows of `store.sample` as PostgreSQL's binary COPY takes them.

Written by hand, since a put of 256 rows spends more time in adapting one value after the other than in everything else
it does: here a row is one call of `struct` and one join. Invariant: `COLUMNS` names what `row` writes, in its order.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

NUMBERS = (
    ("run_id", "q"), ("draw", "i"), ("member", "i"), ("attempt", "h"), ("turn", "h"), ("version", "i"),
    ("n_prompt", "i"), ("n_response", "i"), ("n_allowed", "i"), ("reward", "f"), ("temperature", "f"),
    ("latency_ms", "f"),
)  # fmt: skip
"""Columns of a fixed width: int8, int4, int2, float4."""
COLUMNS = (
    *(name for name, _ in NUMBERS), "role", "policy", "finish", "engine", "segments", "spans", "payload", "segment",
    "seg_offset", "digest",
)  # fmt: skip
BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Signature, no flags, no further header."""
END = b"\xff\xff"

_SIZES = {"q": 8, "i": 4, "h": 2, "f": 4}
_FIXED = Struct("!h" + "".join(f"i{code}" for _, code in NUMBERS))
_FIELDS = [len(COLUMNS), *(part for _, code in NUMBERS for part in (_SIZES[code], 0))]
"""How many fields a row has, then each number's width and, at every second place, the number."""
_LENGTH = Struct("!i")
_NULL = _LENGTH.pack(-1)
_BY_VALUE = _NULL * 3
_PLACE = Struct("!iqiqi")
_ARRAY = Struct("!iiiii")
_INT4_OID = 23


def row(
    numbers: tuple[float, ...],
    texts: Sequence[str],
    segments: Sequence[int],
    spans: bytes | None,
    payload: bytes | None,
    place: tuple[int, int, bytes] | None,
) -> bytes:
    """Write a row: values of `NUMBERS`, four texts, JSON of spans, and a payload or its segment, offset and digest."""
    fields: list[float] = list(_FIELDS)
    fields[2::2] = numbers
    fixed, words = _FIXED.pack(*fields), [_text(text) for text in texts]
    versions = _int4s(tuple(segments)) + (_NULL if spans is None else _jsonb(spans))
    if place is None:
        assert payload is not None
        return b"".join((fixed, *words, versions, _LENGTH.pack(len(payload)), payload, _BY_VALUE))
    segment, offset, digest = place
    return b"".join((fixed, *words, versions, _NULL, _PLACE.pack(8, segment, 8, offset, len(digest)), digest))


@lru_cache(maxsize=4096)
def _text(value: str) -> bytes:
    encoded = value.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _jsonb(value: bytes) -> bytes:
    return _LENGTH.pack(len(value) + 1) + b"\x01" + value  # the format's version


@lru_cache(maxsize=4096)
def _int4s(values: tuple[int, ...]) -> bytes:
    if not values:
        return Struct("!iiii").pack(12, 0, 0, _INT4_OID)
    body = b"".join(Struct("!ii").pack(4, value) for value in values)
    return _LENGTH.pack(_ARRAY.size + len(body)) + _ARRAY.pack(1, 0, _INT4_OID, len(values), 1) + body
