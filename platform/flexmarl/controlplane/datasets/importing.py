"""A file under a mapping and a split, as rows ready to be kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from django.conf import settings
from pydantic import ValidationError

from flexmarl.contracts.problems import problems_of
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.datasets.bad_rows import MOST_SHOWN, BadRow, UnreadableFile, refused
from flexmarl.controlplane.datasets.mapping import Choices, MappedRow, mapped, sides
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
    wrong = 0
    columns: dict[str, None] = {}
    try:
        for number, raw in rows_of(file, kind):
            one = raw if isinstance(raw, BadRow) else mapped(number, raw, choices.mapping)
            if isinstance(one, MappedRow):
                rows.append(one)
                columns.update(dict.fromkeys(one.row.columns))
            else:
                wrong += 1
                if len(bad) < MOST_SHOWN:
                    bad.append(one)
            if len(rows) + wrong > settings.MOST_DATASET_ROWS:
                raise refused([_too_many()], 1)
    except UnreadableFile as unreadable:
        raise refused([*bad, unreadable.bad], wrong + 1) from unreadable
    if bad:
        raise refused(bad, wrong)
    held_out = sides([row.hash for row in rows], choices.split)
    if not rows or all(held_out):
        raise refused([_nothing_left(len(rows))], 1)
    return Imported(rows, held_out, list(columns))


def _too_many() -> BadRow:
    detail = f"The file has more than {settings.MOST_DATASET_ROWS} rows."
    return BadRow(0, "", "too_many_rows", detail, f"At most {settings.MOST_DATASET_ROWS}; import it in parts.")


def _nothing_left(rows: int) -> BadRow:
    detail = f"Of {rows} rows, none is left for training." if rows else "The file has no rows."
    return BadRow(0, "", "no_training_rows", detail, "Hold out fewer rows, or import more." if rows else "Add rows.")
