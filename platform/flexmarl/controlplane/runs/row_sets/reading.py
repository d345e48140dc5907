"""An export of rows, packed as a tar file, read and checked as a whole: rows as they are kept, or a refusal by name.

Invariants: nothing is unpacked to disk, and nothing of the files is run; a row is kept byte for byte as its two files
have it; an export with one bad row is not imported.
"""

import math
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import msgspec
import numpy as np

from flexmarl.contracts.ids import NAME
from flexmarl.contracts.row_files import DESCRIPTION, FORMAT, READ_VERSIONS, ImportedRow, RowExport, RowLine
from flexmarl.contracts.specification.team import MOST_BLOCK
from flexmarl.controlplane.runs.row_sets import tensors
from flexmarl.controlplane.runs.row_sets.refusing import AGAIN, not_an_export, refused, undescribed
from flexmarl.controlplane.runs.row_sets.tensors import RowTensors

_FILE = re.compile(r"rows-\d{5,9}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LINES = msgspec.json.Decoder(RowLine)
_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class RoleRows:
    """What an export has of one role."""

    policy: str
    tokenizer: str
    """SHA-256."""
    rows: int = 0
    solved: int = 0
    """Rows of episodes that solved their task."""
    sampled: int = 0
    """Tokens."""


@dataclass(slots=True)
class ReadExport:
    about: RowExport
    rows: list[bytes] = field(default_factory=list)
    """Each an `ImportedRow` as MessagePack, in the order of the export."""
    roles: dict[str, RoleRows] = field(default_factory=dict)

    def add(self, name: str, number: int, line: RowLine, row: ImportedRow, sampled: int) -> None:
        known = self.roles.get(line.role)
        if known is None:
            known = RoleRows(line.policy, self.about.tokenizers[line.policy])
        elif known.policy != line.policy:
            detail = f"The role {line.role} is played by {known.policy} and by {line.policy}; a run has one for it."
            raise refused(name, "bad_row", detail, number=number)
        self.roles[line.role] = replace(
            known, rows=known.rows + 1, solved=known.solved + line.solved, sampled=known.sampled + sampled
        )
        self.rows.append(_pack(row))


def read(file: BinaryIO, most_rows: int) -> ReadExport:
    """Read an export. Raises ValidationProblem for the first thing that does not fit."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as packed:
            return _Reader(packed).read(most_rows)
    except tarfile.TarError as error:
        raise not_an_export(f"It is no tar file: {error}.") from error


class _Reader:
    def __init__(self, packed: tarfile.TarFile) -> None:
        self._packed = packed
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in packed:
            name = member.name.removeprefix("./").rstrip("/")
            if member.isdir() and name in ("", "."):
                continue
            if not member.isreg() or member.issparse() or "/" in name or name in self._members:
                raise not_an_export(f"{name[:80]} is no file of an export; it has plain files and no folders.")
            self._members[name] = member

    def read(self, most_rows: int) -> ReadExport:
        about = self._described()
        if not 0 < about.rows <= most_rows:
            rule = f"It has {about.rows} rows; 1 to {most_rows} are legal (FLEXMARL_MOST_DATASET_ROWS)."
            raise refused(DESCRIPTION, "too_many_rows" if about.rows else "no_rows", rule, "Export a shorter run.")
        found = ReadExport(about)
        for file in about.files:
            if not _FILE.fullmatch(file.name):
                raise refused(DESCRIPTION, "not_an_export", f"{file.name[:80]} is no name of a file of rows.")
            self._take(found, file.name, file.rows)
        if len(found.rows) != about.rows:
            raise refused(DESCRIPTION, "bad_row", f"It tells of {about.rows} rows, its files have {len(found.rows)}.")
        return found

    def _described(self) -> RowExport:
        if DESCRIPTION not in self._members:
            raise undescribed()
        try:
            raw: Any = msgspec.json.decode(self._content(DESCRIPTION))
            named = (raw.get("format"), raw.get("format_version")) if isinstance(raw, dict) else ("", 0)
            if named[0] != FORMAT or named[1] not in READ_VERSIONS:
                read = " and ".join(map(str, READ_VERSIONS))
                detail = f"Its format is {str(named[0])[:80]} {str(named[1])[:20]}; {FORMAT} {read} are read."
                raise refused(DESCRIPTION, "unknown_format", detail, f"{AGAIN} An export is read by its own release.")
            about = msgspec.convert(raw, RowExport)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise refused(DESCRIPTION, "not_an_export", f"It is not what export_rows writes: {error}.") from error
        if not isinstance(about.environment.get("type"), str):
            raise refused(DESCRIPTION, "not_an_export", "environment.type is missing.")
        for policy, digest in about.tokenizers.items():
            if not _DIGEST.fullmatch(digest):
                rule = f"tokenizers.{policy[:40]} is no SHA-256, so nobody knows what its ids mean."
                raise refused(DESCRIPTION, "no_tokenizer", rule)
        return about

    def _content(self, name: str) -> bytes:
        member = self._members.get(name)
        body = self._packed.extractfile(member) if member is not None else None
        if body is None:
            raise refused(name, "missing_file", f"{DESCRIPTION} names it, and it is not there.")
        return body.read()

    def _take(self, found: ReadExport, name: str, rows: int) -> None:
        said, values = f"{name}.jsonl", f"{name}.safetensors"
        lines = self._content(said).splitlines()
        if len(lines) != rows:
            raise refused(said, "bad_row", f"It has {len(lines)} lines, {DESCRIPTION} tells of {rows}.")
        parts = tensors.read(values, self._content(values), rows)
        for number, (text, part) in enumerate(zip(lines, parts, strict=True), start=1):
            line = _line(said, number, text, found.about)
            wrong = next(_wrong(line, part, found.about), "")
            if wrong:
                raise refused(said, "bad_row", f"{wrong}.", number=number)
            row = ImportedRow(
                text, part.ids.tobytes(), part.mask.tobytes(), part.logprobs.tobytes(), part.advantages.tobytes(),
                part.allowed.tobytes(),
            )  # fmt: skip
            found.add(said, number, line, row, sum(line.spans[1::2]))


def _line(name: str, number: int, text: bytes, about: RowExport) -> RowLine:
    try:
        line = _LINES.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise refused(name, "bad_row", f"It is not what export_rows writes: {error}.", number=number) from error
    figures = [line.temperature, line.weight, line.team_score, *line.advantages, *line.rewards, *line.scores.values()]
    if not all(map(math.isfinite, figures)):
        raise refused(name, "not_finite", "It has numbers that are not finite.", number=number)
    if line.policy not in about.tokenizers:
        detail = f"Nobody knows the tokenizer of {line.policy[:40]}; {DESCRIPTION} has those of others."
        raise refused(name, "no_tokenizer", detail, number=number)
    return line


def _by_token(line: RowLine, sampled: int) -> Iterator[str]:
    """Yield what of a line does not tell of each sampled token."""
    if line.steps and (len(line.steps) != sampled or not set(line.steps) <= set(range(MOST_BLOCK))):
        yield f"steps are not one of 0 to {MOST_BLOCK - 1} for each sampled token"
    if len(line.segments) % 2 or sum(line.segments[1::2]) != sampled:
        yield "segments do not say which version sampled each token"


def _wrong(line: RowLine, part: RowTensors, about: RowExport) -> Iterator[str]:
    """Yield what of a line and its tensors disagrees."""
    turns, sampled = len(line.spans) // 2, part.mask == 1
    if not re.fullmatch(NAME, line.role):
        yield f"{line.role[:40]} is no name of a role"
    if len(line.spans) % 2 or not turns or min(line.spans) < 0 or sum(line.spans) != len(part.ids):
        yield f"spans are not pairs of lengths of {len(part.ids)} tokens in all"
        return
    if not np.array_equal(np.repeat(np.arange(2 * turns) % 2, line.spans), part.mask):
        yield "spans and mask disagree on which tokens were sampled"
        return
    if line.spans[0] == 0:
        yield "it reads nothing before its first turn"
    if len(line.advantages) != turns or not np.array_equal(
        np.repeat(np.array(line.advantages, np.float64), line.spans[1::2]).astype(np.float32), part.advantages[sampled]
    ):
        yield "advantages of its turns and of its tokens disagree"
    if line.grammars and (len(line.grammars) != turns or not set(line.grammars) - {""} <= about.grammars.keys()):
        yield f"grammars are not one for each turn, of those that {DESCRIPTION} tells of"
    yield from _wrong_turns(line, turns)
    yield from _by_token(line, int(sampled.sum()))
    if line.temperature <= 0:
        yield "temperature is not above 0"
    if len(part.allowed) and not np.isin(part.ids[sampled], part.allowed).all():
        yield "a token was sampled that is not among those allowed"


def _wrong_turns(line: RowLine, turns: int) -> Iterator[str]:
    """Yield what a line says of other turns than it has."""
    if line.rewards and len(line.rewards) != turns:
        yield "rewards are not one for each turn"
    if line.offsets and (len(line.offsets) != turns or line.offsets[0] or line.offsets != sorted(set(line.offsets))):
        yield "offsets do not begin with 0 and rise, one for each turn"
