"""Rows of datasets: what is asked, the answer that is expected, and everything else that the row had.

Invariants: a row has one line of bytes, and the digest of a dataset's rows is that of the lines with their sides, in
order; so whoever has the lines can check that they are those a run was made for.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from flexmarl.language.messages import Message


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
