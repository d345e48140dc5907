"""Rows of datasets: what is asked, the answer that is expected, and everything else that the row had.

Invariants: a row has one line of bytes, and the digest of a dataset's rows is that of the lines with their sides, in
order; so whoever has the lines can check that they are those a run was made for. Which row is the task of a draw is a
pure function of the draw's number: each epoch goes once through all training rows, in an order of its own.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from flexmarl.language.messages import Message

_ROUNDS = 4
"""Of the Feistel network; four make its order pseudo-random."""


@dataclass(frozen=True, slots=True)
class DatasetRow:
    messages: tuple[Message, ...]
    """What is asked: ends with a message of the user."""
    answer: str = ""
    """What is expected; empty where the dataset has no answers."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns, as JSON values."""

    @property
    def prompt(self) -> str:
        """What people read and search: the user's messages, in order."""
        return "\n".join(message.content for message in self.messages if message.role == "user")


def to_line(row: DatasetRow) -> bytes:
    """Return a row as bytes. Raises TypeError for values that JSON of 64-bit numbers does not have."""
    messages = [{"role": message.role, "content": message.content} for message in row.messages]
    value = {"messages": messages, "answer": row.answer, "columns": dict(row.columns)}
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def from_line(line: bytes) -> DatasetRow:
    """Return the row of a line."""
    value = orjson.loads(line)
    messages = tuple(Message(one["role"], one["content"]) for one in value["messages"])
    return DatasetRow(messages, value["answer"], value["columns"])


def digest_of(lines: Iterable[tuple[bool, bytes]]) -> str:
    """Return the SHA-256 digest of rows: (held out, line), in order."""
    digest = hashlib.sha256()
    for held_out, line in lines:
        digest.update((b"h" if held_out else b"t") + line + b"\n")
    return digest.hexdigest()


def epoch_of(draw: int, rows: int) -> int:
    """Return which pass through the rows a draw belongs to, from 0."""
    return draw // rows


def row_of(draw: int, rows: int, seed: int) -> int:
    """Return the row of a draw, from 0.

    The order of an epoch is a Feistel network over the next power of four, walked until it lands on a row: a
    permutation that needs no memory.
    """
    key = f"{seed}/{epoch_of(draw, rows)}/".encode()
    half = (max(rows - 1, 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    place = draw % rows
    while True:
        left, right = place >> half, place & mask
        for number in range(_ROUNDS):
            mixed = hashlib.blake2b(key + f"{number}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(mixed, "big") & mask)
        place = left << half | right
        if place < rows:
            return place
