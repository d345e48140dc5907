"""`fields=`: rows of a list with the members a caller wants, and no others."""

import re
from collections.abc import Sequence

from rest_framework.response import Response

from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem

FIELDS = Parameter("fields", "Comma-separated members of each row to answer with; all when absent.")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def trim(response: Response, fields: str, names: Sequence[str] = ()) -> None:
    """Keep the named members of each row. Raises ValidationProblem naming one that rows do not have.

    `names` are the legal ones; without them the first row tells, and an empty list refuses nothing.
    """
    rows = response.data.get("results") if isinstance(response.data, dict) else None
    if response.status_code != 200 or not isinstance(rows, list):
        return
    wanted = [name for name in fields.split(",") if name]
    legal = sorted(names or (rows[0] if rows else ()))
    for name in wanted:
        if not _NAME.fullmatch(name) or (legal and name not in legal):
            raise _refuse(name, legal)
    response.data["results"] = [{name: row[name] for name in wanted if name in row} for row in rows]


def _refuse(name: str, legal: list[str]) -> ValidationProblem:
    detail = f"{name} is not a member of these rows."
    hint = f"Legal: {', '.join(legal)}." if legal else "Send names of members, separated by commas."
    return ValidationProblem(detail, errors=[FieldError("fields", "unknown_value", detail, hint, "query")])
