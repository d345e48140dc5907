"""Rows of a file in a format: JSON lines, CSV with a head, Parquet. Reading is all that happens to a file.

Invariants: a file is read in order and never held whole; a row is limited in bytes and nesting before anybody looks
at it; a file that cannot be read on is refused by the line where that is.
"""

import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from typing import Any, BinaryIO, cast

import orjson
from django.conf import settings

from flexmarl.controlplane.datasets.bad_rows import BadRow, UnreadableFile

_PARQUET = "flexmarl.controlplane.datasets.parquet"
MOST_ROW_BYTES = 2**20
MOST_COLUMNS = 256
Numbered = tuple[int, dict[str, Any] | BadRow]
"""A line's number, and what is in it."""


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
        return BadRow(number, "", "no_json", f"It is not JSON: {error}.", legal)
    if not isinstance(value, dict):
        return BadRow(number, "", "no_object", f"It is a {type(value).__name__}, not an object.", legal)
    if len(value) > MOST_COLUMNS:
        return BadRow(number, "", "too_many_columns", f"It has {len(value)} columns.", f"At most {MOST_COLUMNS}.")
    return value


def _csv(file: BinaryIO) -> Iterator[Numbered]:
    texts = _texts(file)
    first = next(texts, "")
    reader = csv.reader(chain([first], texts), strict=True, delimiter=_separator(first))
    try:
        head = next(reader, [])
        _check_head(head)
        for cells in reader:
            if cells:
                yield reader.line_num, _cells(reader.line_num, head, cells)
    except csv.Error as error:
        hint = "Close quotes; a cell has at most 131072 characters."
        bad = BadRow(reader.line_num, "", "no_csv", f"It is not CSV: {error}.", hint)
        raise UnreadableFile(bad) from error


def _separator(head: str) -> str:
    """Return what stands between cells: a comma, or where the first line has none what spreadsheets write instead."""
    return next((one for one in ";\t" if one in head and "," not in head), ",")


def _texts(file: BinaryIO) -> Iterator[str]:
    number = 0
    while line := file.readline(MOST_ROW_BYTES + 1):
        number += 1
        if len(line) > MOST_ROW_BYTES:
            detail = f"The line has more than {MOST_ROW_BYTES} bytes."
            raise UnreadableFile(BadRow(number, "", "too_long", detail, "Write one row per line."))
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            bad = BadRow(number, "", "no_utf8", f"It is not UTF-8: {error.reason}.", "Save it as UTF-8.")
            raise UnreadableFile(bad) from error


def _check_head(head: list[str]) -> None:
    legal = "The first line names the columns, each once: prompt,answer."
    if not head or not all(name.strip() for name in head) or len(set(head)) < len(head) or len(head) > MOST_COLUMNS:
        raise UnreadableFile(BadRow(1, "", "no_head", f"The first line is {', '.join(head)[:100] or 'empty'}.", legal))


def _cells(number: int, head: list[str], cells: list[str]) -> dict[str, Any] | BadRow:
    if len(cells) != len(head):
        detail = f"The row has {len(cells)} cells, and there are {len(head)} columns."
        return BadRow(number, "", "wrong_width", detail, "Put texts with commas in quotes.")
    return dict(zip(head, cells, strict=True))


def _parquet(file: BinaryIO) -> Iterator[Numbered]:
    if find_spec("pyarrow") is None:
        hint = "Install flexmarl[parquet] where the web process runs, or send JSON lines."
        raise UnreadableFile(BadRow(0, "", "not_available", "Parquet needs the package pyarrow.", hint))
    asked = [sys.executable, "-m", _PARQUET, str(settings.MOST_DATASET_ROWS), str(MOST_COLUMNS)]
    # All that the process knows: nothing of this one's environment, which has credentials.
    known = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(asked, stdin=file, stdout=subprocess.PIPE, stderr=said, env=known) as process,
    ):
        assert process.stdout is not None
        try:
            yield from _jsonl(cast("BinaryIO", process.stdout))
            if process.wait() != 0:
                said.seek(0)
                last = said.read().decode(errors="replace").strip().rpartition("\n")[2][:300]
                detail = f"It cannot be read as Parquet: {last or 'it takes too much memory or time'}."
                raise UnreadableFile(BadRow(0, "", "no_parquet", detail, "Send JSON lines instead."))
        finally:
            process.kill()


_READERS: Mapping[str, Callable[[BinaryIO], Iterator[Numbered]]] = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}
