"""Rows of a file in a format: JSON lines, CSV with a head, Parquet. Reading is all that happens to a file.

Invariants: a file is read in order and never held whole; a row is limited in bytes and nesting before anybody looks
at it; a file that cannot be read on is refused by the line where that is.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import orjson

from flexmarl.controlplane.datasets.bad_rows import BadRow, UnreadableFile

MOST_ROW_BYTES = 2**20
MOST_COLUMNS = 256
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
"""Ending of a file's name -> format."""
Numbered = tuple[int, dict[str, Any] | BadRow]
"""A line's number, and what is in it."""


def format_of(name: str) -> str | None:
    """Return the format of a file by its name."""
    return next((kind for ending, kind in FORMATS.items() if name.lower().endswith(ending)), None)


def rows_of(file: BinaryIO, kind: str) -> Iterator[Numbered]:
    """Read the rows of a file. Raises UnreadableFile."""
    return _READERS[kind](file)


def _jsonl(file: BinaryIO) -> Iterator[Numbered]:
    number = 0
    while line := file.readline(MOST_ROW_BYTES + 1):
        number += 1
        if len(line) > MOST_ROW_BYTES:
            detail = f"The line has more than {MOST_ROW_BYTES} bytes."
            raise UnreadableFile(BadRow(number, "", "too_long", detail, "Write one object per line."))
        text = line.strip().removeprefix(b"\xef\xbb\xbf")
        if text:
            yield number, _object(number, text)


def _object(number: int, text: bytes) -> dict[str, Any] | BadRow:
    legal = 'Write one object per line: {"prompt": "...", "answer": "..."}.'
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return BadRow(number, "", "no_json", f"It is no JSON: {error}.", legal)
    if not isinstance(value, dict):
        return BadRow(number, "", "no_object", f"It is a {type(value).__name__}, not an object.", legal)
    if len(value) > MOST_COLUMNS:
        return BadRow(number, "", "too_many_columns", f"It has {len(value)} columns.", f"At most {MOST_COLUMNS}.")
    return value


def _csv(file: BinaryIO) -> Iterator[Numbered]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    reader = csv.reader(_bounded(text), strict=True)
    try:
        head = next(reader, [])
        _check_head(head)
        for cells in reader:
            if cells:
                yield reader.line_num, _cells(reader.line_num, head, cells)
    except UnicodeDecodeError as error:
        bad = BadRow(reader.line_num + 1, "", "no_utf8", f"It is not UTF-8: {error.reason}.", "Save it as UTF-8.")
        raise UnreadableFile(bad) from error
    except csv.Error as error:
        raise UnreadableFile(
            BadRow(reader.line_num, "", "no_csv", f"It is no CSV: {error}.", "Close quotes.")
        ) from error
    finally:
        text.detach()


def _bounded(text: io.TextIOWrapper) -> Iterator[str]:
    number = 0
    while line := text.readline(MOST_ROW_BYTES + 1):
        number += 1
        if len(line) > MOST_ROW_BYTES:
            detail = f"The line has more than {MOST_ROW_BYTES} characters."
            raise UnreadableFile(BadRow(number, "", "too_long", detail, "Write one row per line."))
        yield line


def _check_head(head: list[str]) -> None:
    legal = "The first line names the columns, each once: prompt,answer."
    if not head or not all(name.strip() for name in head) or len(set(head)) < len(head) or len(head) > MOST_COLUMNS:
        raise UnreadableFile(BadRow(1, "", "no_head", f"The first line is {', '.join(head)[:100] or 'empty'}.", legal))


def _cells(number: int, head: list[str], cells: list[str]) -> dict[str, Any] | BadRow:
    if len(cells) != len(head):
        detail = f"The row has {len(cells)} cells, and there are {len(head)} columns."
        return BadRow(number, "", "wrong_width", detail, "Put texts with commas in quotes.")
    return dict(zip(head, cells, strict=True))


_READERS: Mapping[str, Callable[[BinaryIO], Iterator[Numbered]]] = {"jsonl": _jsonl, "csv": _csv}
