"""Why an export is not imported: each refusal names the file, the rule and what is legal."""

from flexmarl.contracts.row_files import DESCRIPTION
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem

PACK = "Pack the folder that export_rows wrote: tar -cf rows.tar -C FOLDER ."
AGAIN = "Export the run once more."
SAFE = f"{AGAIN} Pickles and other formats are not read."


def refused(name: str, code: str, detail: str, hint: str = AGAIN, number: int | None = None) -> ValidationProblem:
    """Return the refusal of a file of an export, `name`; empty: of the whole. `number`: of its row, from 1."""
    where = "/".join(["/file", *filter(None, [name]), *([str(number)] if number is not None else [])])
    row = f", row {number}" if number is not None else ""
    said = f"{name}{row}: {detail}" if name else detail
    return ValidationProblem(said, errors=[FieldError(where, code, said, hint)])


def not_an_export(detail: str, name: str = "") -> ValidationProblem:
    return refused(name, "not_an_export", detail, PACK)


def undescribed() -> ValidationProblem:
    return not_an_export(f"It has no {DESCRIPTION}.")
