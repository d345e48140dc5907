"""What is wrong with a file: named by line, column, rule and what is legal."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem

MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class BadRow:
    line: int
    """Of the file, from 1; 0: the whole file."""
    column: str
    code: str
    detail: str
    hint: str
    file: str = ""
    """That it is in, where there are several."""

    def as_error(self) -> FieldError:
        """Return it as an entry of a problem's `errors`."""
        escaped = self.column.replace("~", "~0").replace("/", "~1")
        below = f"/{escaped}" if self.column else ""
        where = f"/file/{self.line}{below}" if self.line else "/file"
        line = f"line {self.line}" if self.line else ""
        place = ", ".join(filter(None, (self.file, line))) if self.file else line.capitalize()
        detail = f"{place}: {self.detail}" if place else self.detail
        return FieldError(where, self.code, detail, self.hint)


class UnreadableFile(Exception):
    """The rest of a file cannot be read."""

    def __init__(self, bad: BadRow) -> None:
        self.bad = bad
        super().__init__(bad.detail)


def refused(bad: Sequence[BadRow], total: int) -> ValidationProblem:
    """Return the refusal of a file with bad rows, of which there are `total`."""
    detail = f"{total} rows cannot be imported; nothing was." if bad[0].line else bad[0].detail
    return ValidationProblem(detail, errors=[one.as_error() for one in bad[:MOST_SHOWN]], extra={"bad_rows": total})
