"""From rows of a file to rows of a dataset: which columns are what, and which rows are held out.

Invariants: rows with one prompt are on one side, wherever they stand and whatever else they hold; the same prompt is on
the same side of two versions with one share. Nothing is guessed: a row that does not fit is a bad row.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.yaml_text import is_storable
from flexmarl.controlplane.datasets.bad_rows import BadRow
from flexmarl.language.dataset_rows import DatasetRow, from_line, to_line
from flexmarl.language.gym_rows import REQUEST, NotOfGym, request_of, words_of
from flexmarl.language.messages import Message

SPEAKERS = ("system", "user", "assistant")
MOST_MESSAGES = 256
MOST_DEPTH = 32
"""Nesting of a column's value."""
MOST_DETAIL = 300
_HASHES = 2**64


class ColumnMapping(Strict):
    """Which columns of a file are the prompt and the answer; the others are kept beside them."""

    prompt: str = Field(default="", max_length=200)
    """Column whose text is asked."""
    messages: str = Field(default="", max_length=200)
    """Column with a list of messages, {role, content}, that ends with one of the user, or of the assistant where no
    column has the answer: the last one is the answer then."""
    request: str = Field(default="", max_length=200)
    """Column with a request of OpenAI's Responses API, {input, tools, ...}, as rows of NeMo Gym have it. All columns of
    such rows are kept as they are, since the environment's server reads them."""
    answer: str = Field(default="", max_length=200)
    """Column with the expected answer; none when empty."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if sum(map(bool, (self.prompt, self.messages, self.request))) != 1:
            raise ValueError("name the column of the prompt, of the messages or of the request, one of the three")
        return self

    @property
    def asked(self) -> str:
        return self.prompt or self.messages or self.request

    def kept(self, columns: Iterable[str]) -> list[str]:
        """Return those of a row's columns that are neither prompt nor answer; of a request, all."""
        return list(columns) if self.request else [name for name in columns if name not in {self.asked, self.answer}]


class ShareSplit(Strict):
    """So many of all prompts, by their hash."""

    type: Literal["share"] = "share"
    share: float = Field(default=0.1, ge=0.0, le=0.9)


class CountSplit(Strict):
    """At least so many rows: those of the prompts with the lowest hashes."""

    type: Literal["count"] = "count"
    rows: int = Field(default=100, ge=0)


class NamedSplit(Strict):
    """The rows of files that a hub has in these splits, and those with a prompt of theirs."""

    type: Literal["splits"] = "splits"
    held_out: tuple[str, ...] = Field(min_length=1, max_length=50)


Split = ShareSplit | CountSplit | NamedSplit


class Choices(Strict):
    """What whoever imports a file chooses."""

    mapping: ColumnMapping
    split: Annotated[Split, Field(discriminator="type")]


_PROMPTS = ("prompt", "question", "problem", "instruction", "input")
_ANSWERS = ("answer", "solution", "target", "label")


def suggested(columns: Sequence[str]) -> dict[str, str]:
    """Return the mapping that the usual names of columns suggest; without a prompt the first column is it."""
    if REQUEST in columns:
        return {"request": REQUEST, "answer": ""}
    answer = next((name for name in _ANSWERS if name in columns), "")
    if "messages" in columns:
        return {"messages": "messages", "answer": answer}
    return {"prompt": next((name for name in _PROMPTS if name in columns), next(iter(columns), "")), "answer": answer}


@dataclass(frozen=True, slots=True)
class MappedRow:
    """A row as it is kept: bytes, since the objects that they stand for may take twenty times as much memory."""

    prompt: str
    line: bytes
    hash: int
    """Of the prompt, below 2 ** 64: decides the side."""

    @property
    def row(self) -> DatasetRow:
        return from_line(self.line)


def mapped(number: int, raw: Mapping[str, Any], mapping: ColumnMapping) -> MappedRow | BadRow:
    """Return a row of a file as a row of a dataset. `number` is its line."""
    for column in filter(None, (mapping.asked, mapping.answer)):
        if column not in raw:
            there = ", ".join(list(raw)[:10]) or "none"
            return BadRow(number, column, "missing", f"The row has no column {column}.", f"It has {there}.")
    messages = _messages(number, raw, mapping)
    if isinstance(messages, BadRow):
        return messages
    answer = _answer(number, raw[mapping.answer], mapping.answer) if mapping.answer else ""
    if messages[-1].role == "assistant":
        *asked, last = messages
        messages, answer = tuple(asked), last.content
    if isinstance(answer, BadRow):
        return answer
    columns = {name: raw[name] for name in mapping.kept(raw)}
    try:
        line = to_line(row := DatasetRow(messages, answer, columns))
    except (TypeError, ValueError, RecursionError) as error:
        return BadRow(number, "", "not_storable", f"The row cannot be kept: {error}.", "Numbers have at most 64 bits.")
    if not is_storable(row.prompt):
        detail = "The prompt has a NUL character or half of a surrogate pair."
        return BadRow(number, mapping.asked, "not_storable", detail, "Remove it.")
    return MappedRow(row.prompt, line, prompt_hash(messages))


def _messages(number: int, raw: Mapping[str, Any], mapping: ColumnMapping) -> tuple[Message, ...] | BadRow:
    value = raw[mapping.asked]
    if mapping.prompt:
        if not isinstance(value, str) or not value.strip():
            detail = f"{mapping.prompt} is {_shown(value)}, not a text."
            return BadRow(number, mapping.prompt, "no_text", detail, "A prompt is a text that is not empty.")
        return (Message("user", value),)
    if mapping.request:
        return _request(number, value, mapping.request)
    legal = 'Write [{"role": "user", "content": "..."}]; roles: system, user, assistant.'
    if not isinstance(value, list) or not 0 < len(value) <= MOST_MESSAGES:
        detail = f"{mapping.messages} is {_shown(value)}, not a list of 1 to {MOST_MESSAGES} messages."
        return BadRow(number, mapping.messages, "no_messages", detail, legal)
    made = []
    for place, one in enumerate(value):
        speaks = isinstance(one, dict) and one.get("role") in SPEAKERS and isinstance(one.get("content"), str)
        if not speaks or (one["role"] == "system" and place > 0):
            detail = f"Message {place + 1} of {mapping.messages} is {_shown(one)}."
            return BadRow(number, mapping.messages, "bad_message", detail, f"{legal} Only the first may be system.")
        made.append(Message(one["role"], one["content"]))
    answered = made[-1].role == "assistant" and not mapping.answer
    last = made[-2:-1] if answered else made[-1:]
    if not last or last[0].role != "user" or not last[0].content.strip():
        detail = f"The last message of {mapping.messages} is {_shown(value[-1])}."
        other = "" if mapping.answer else ", or the assistant's that answers it"
        legal = f"The last message is the user's, and asks{other}."
        return BadRow(number, mapping.messages, "no_question", detail, legal)
    return tuple(made)


def _request(number: int, value: object, column: str) -> tuple[Message, ...] | BadRow:
    legal = 'Write {"input": [{"role": "user", "content": "..."}], "tools": [...]}, as the Responses API has it.'
    try:
        messages = words_of(request_of(value))
    except NotOfGym as error:
        return BadRow(number, column, "bad_request", f"{error}"[:MOST_DETAIL], legal)
    if not messages:
        return BadRow(number, column, "no_question", f"No item of {column}.input has words.", legal)
    return messages


def _answer(number: int, value: object, column: str) -> str | BadRow:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return BadRow(number, column, "no_answer", f"{column} is {_shown(value)}.", "An answer is a text or a number.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def prompt_hash(messages: Sequence[Message]) -> int:
    """Return the number that decides on which side a prompt is; spaces do not count."""
    text = "\x1e".join(f"{message.role}\x1f{' '.join(message.content.split())}" for message in messages)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")


_FOR_EVALUATION = ("test", "validation", "valid", "val", "dev", "eval", "evaluation")


def suggested_split(names: Sequence[str]) -> dict[str, Any]:
    """Return how rows of splits with these names are held out: those of splits that are named so, or a tenth."""
    held_out = [name for name in names if name.lower() in _FOR_EVALUATION]
    if held_out and len(held_out) < len(names):
        return {"type": "splits", "held_out": held_out}
    return {"type": "share", "share": 0.1}


def sides(hashes: Sequence[int], split: Split, names: Sequence[str] = ()) -> list[bool]:
    """Return which rows are held out. `names` are the splits that they are in, where there are any."""
    if isinstance(split, NamedSplit):
        held = {one for one, name in zip(hashes, names, strict=True) if name in split.held_out}
        return [one in held for one in hashes]
    if isinstance(split, ShareSplit):
        limit = int(split.share * _HASHES)
        return [one < limit for one in hashes]
    counts: dict[int, int] = {}
    for one in hashes:
        counts[one] = counts.get(one, 0) + 1
    chosen: set[int] = set()
    found = 0
    for one in sorted(counts):
        if found >= split.rows:
            break
        chosen.add(one)
        found += counts[one]
    return [one in chosen for one in hashes]
