"""A file under a mapping and a split, as rows ready to be kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from django.conf import settings
from pydantic import ValidationError

from flexmarl.contracts.problems import problems_of
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.datasets.archives import inputs_of
from flexmarl.controlplane.datasets.bad_rows import MOST_SHOWN, BadRow, UnreadableFile, refused
from flexmarl.controlplane.datasets.mapping import Choices, MappedRow, NamedSplit, mapped, sides
from flexmarl.controlplane.datasets.reading import rows_of
from flexmarl.language.dataset_rows import digest_of


@dataclass(frozen=True, slots=True)
class Imported:
    """Rows of a file, in order, with their sides."""

    rows: list[MappedRow]
    held_out: list[bool]
    columns: list[str]
    """Kept beside messages and answer, in the order in which they came up."""

    @property
    def digest(self) -> str:
        return digest_of((side, row.line) for side, row in zip(self.held_out, self.rows, strict=True))


def read_choices(mapping: Mapping[str, Any], split: Mapping[str, Any]) -> Choices:
    """Read what somebody chose. Raises ValidationProblem."""
    given = {"mapping": dict(mapping), "split": {"type": "share", **split}}
    try:
        return Choices.model_validate(given)
    except ValidationError as error:
        found = [FieldError(one.pointer, one.code, one.detail, one.hint) for one in problems_of(error, Choices, given)]
        raise ValidationProblem(found[0].detail, errors=found) from error


def imported(file: BinaryIO, kind: str, choices: Choices) -> Imported:
    """Read a whole file. Raises ValidationProblem with its bad rows: then nothing of it may be kept."""
    rows: list[MappedRow] = []
    bad: list[BadRow] = []
    wrong = size = 0
    columns: dict[str, None] = {}
    splits: list[str] = []
    try:
        for split, raw, one in _mapped_rows(file, kind, choices):
            if isinstance(one, MappedRow):
                assert isinstance(raw, dict)
                rows.append(one)
                splits.append(split)
                columns.update(dict.fromkeys(choices.mapping.kept(raw)))
                size += len(one.line)
            else:
                wrong += 1
                if len(bad) < MOST_SHOWN:
                    bad.append(one)
            if len(rows) + wrong > settings.MOST_DATASET_ROWS:
                raise refused([_too_many()], 1)
            if size > settings.MOST_DATASET_BYTES:
                raise refused([_too_large()], 1)
    except UnreadableFile as unreadable:
        raise refused([*bad, unreadable.bad], wrong + 1) from unreadable
    if bad:
        raise refused(bad, wrong)
    if isinstance(choices.split, NamedSplit):
        _check_names(choices.split, splits)
    held_out = sides([row.hash for row in rows], choices.split, splits)
    if not rows or all(held_out):
        raise refused([_nothing_left(len(rows))], 1)
    return Imported(rows, held_out, list(columns))


def _mapped_rows(
    file: BinaryIO, kind: str, choices: Choices
) -> Iterator[tuple[str, dict[str, Any] | BadRow, MappedRow | BadRow]]:
    """Return each row with the split that it is in, as it is and as it was mapped. Raises UnreadableFile."""
    for part in inputs_of(file, kind):
        try:
            for number, raw in rows_of(part.file, part.kind):
                one = raw if isinstance(raw, BadRow) else mapped(number, raw, choices.mapping)
                yield part.split, raw, replace(one, file=part.name) if isinstance(one, BadRow) else one
        except UnreadableFile as unreadable:
            raise UnreadableFile(replace(unreadable.bad, file=part.name)) from unreadable


def _check_names(split: NamedSplit, there: Sequence[str]) -> None:
    known = list(dict.fromkeys(filter(None, there)))
    for name in split.held_out:
        if name not in known:
            detail = f"The rows are in no split {name[:80]}."
            hint = (
                f"Legal: {', '.join(known)}."
                if known
                else "An uploaded file has no splits: hold out a share or a count."
            )
            raise ValidationProblem(detail, errors=[FieldError("/split/held_out", "unknown_value", detail, hint)])


def _too_many() -> BadRow:
    detail = f"The file has more than {settings.MOST_DATASET_ROWS} rows."
    return BadRow(0, "", "too_many_rows", detail, f"At most {settings.MOST_DATASET_ROWS}; import it in parts.")


def _too_large() -> BadRow:
    """Say that a file stands for more than it has: it is packed, or its columns are named in every row."""
    most = settings.MOST_DATASET_BYTES // 2**20
    detail = f"The rows of the file have more than {most} MiB."
    hint = f"At most {most} MiB as JSON lines (FLEXMARL_MOST_DATASET_MIB); import it in parts."
    return BadRow(0, "", "too_large", detail, hint)


def _nothing_left(rows: int) -> BadRow:
    detail = f"Of {rows} rows, none is left for training." if rows else "The file has no rows."
    return BadRow(0, "", "no_training_rows", detail, "Hold out fewer rows, or import more." if rows else "Add rows.")
