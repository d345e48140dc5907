"""Keyset pages: a cursor names the last row seen, so that pages neither skip nor repeat rows while others are added.

An ordering is a list of columns that ends in a unique one. A cursor is opaque, holds the ordering it was made for and
is refused with another. Nobody signs it: what it holds is checked like any other input.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.utils.dateparse import parse_datetime
from rest_framework.request import Request

from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.parsers import safe_json
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
MOST_NUMBER = 2**63
"""Of a cursor: what the database can compare."""
LIMIT = Parameter("limit", f"Rows per page, 1 to {MAX_LIMIT}.", "integer")
CURSOR = Parameter("cursor", "Opaque position, from `next` or `previous` of another page.")
FIRST_PAGE = "Omit it to begin at the first page."
COUNT = Parameter("count", "`exact` also counts all matching rows.", choices=("exact", "false"))


@dataclass(frozen=True, slots=True)
class Page:
    rows: list[Any]
    next: str | None
    previous: str | None
    count: int | None


@dataclass(frozen=True, slots=True)
class Cursor:
    ordering: str
    back: bool
    values: list[Any]

    def encode(self) -> str:
        """Write the cursor as URL-safe text."""
        raw = json.dumps([self.ordering, self.back, [_plain(value) for value in self.values]], separators=(",", ":"))
        return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")


def decode(text: str, ordering: str) -> Cursor:
    """Read a cursor. Raises ValidationProblem when it is not one or belongs to another ordering."""
    try:
        name, back, values = safe_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        cursor = Cursor(str(name), bool(back), [_typed(value) for value in values])
    except (ValueError, TypeError, KeyError, binascii.Error):
        raise _refuse("not_a_cursor", FIRST_PAGE) from None
    if cursor.ordering != ordering or len(cursor.values) != len(ordering.split(",")):
        raise _refuse("other_ordering", "Use a cursor only with the ordering of the page that returned it.")
    return cursor


def page(
    rows: QuerySet[Any],
    ordering: str,
    values: Mapping[str, Any],
    pick: Callable[[Any, str], Any] = getattr,
    *,
    whole: QuerySet[Any] | None = None,
) -> Page:
    """Cut one page. `ordering` is e.g. `-created_at,id`; `pick` reads a column of a row.

    With `whole`, all rows without the filters, keys alone are filtered and ordered, and then the rows of the page are
    read by key: one query more, and far less to sort and to check when rows are wide.
    """
    limit = values.get("limit", DEFAULT_LIMIT)
    if not 1 <= limit <= MAX_LIMIT:
        detail = f"limit={limit} is not between 1 and {MAX_LIMIT}."
        raise ValidationProblem(detail, errors=[FieldError("limit", "out_of_range", detail, "", "query")])
    columns = ordering.split(",")
    count = rows.count() if values.get("count") == "exact" else None
    cursor = decode(values["cursor"], ordering) if "cursor" in values else None
    back = cursor is not None and cursor.back
    if cursor is not None:
        rows = _from(rows, columns, cursor)
    ordered = rows.order_by(*(_flip(c) if back else c for c in columns))
    found = list(ordered[: limit + 1]) if whole is None else _by_keys(ordered, whole, limit + 1)
    more, found = len(found) > limit, found[:limit]
    if back:
        found.reverse()

    def cursor_at(row: Any, backwards: bool) -> str:
        return Cursor(ordering, backwards, [pick(row, c.lstrip("-")) for c in columns]).encode()

    has_next = bool(found) and (more or back)
    has_previous = bool(found) and (cursor is not None and (not back or more))
    return Page(
        rows=found,
        next=cursor_at(found[-1], False) if has_next else None,
        previous=cursor_at(found[0], True) if has_previous else None,
        count=count,
    )


def _from(rows: QuerySet[Any], columns: list[str], cursor: Cursor) -> QuerySet[Any]:
    """Keep the rows behind a cursor. Raises ValidationProblem where its values are not of the columns' types."""
    try:
        return rows.filter(_behind(columns, cursor.values, cursor.back))
    except (ValueError, TypeError, OverflowError, ValidationError):
        raise _refuse("not_a_cursor", FIRST_PAGE) from None


def _by_keys(ordered: QuerySet[Any], whole: QuerySet[Any], most: int) -> list[Any]:
    keys = list(ordered.values_list("pk", flat=True)[:most])
    found = {row.pk: row for row in whole.order_by().filter(pk__in=keys)} if keys else {}
    return [found[key] for key in keys if key in found]


def envelope(request: Request, cut: Page, results: list[Any]) -> dict[str, Any]:
    """Wrap a page's rows as the API answers them."""

    def link(cursor: str | None) -> str | None:
        if cursor is None:
            return None
        query = request.query_params.copy()
        query["cursor"] = cursor
        return f"{request.path}?{query.urlencode()}"

    return {"results": results, "next": link(cut.next), "previous": link(cut.previous), "count": cut.count}


def _behind(columns: list[str], values: list[Any], back: bool) -> Q:
    """Rows after (or before) a position: a comparison of tuples, spelled out because directions may differ."""
    condition, equal = Q(), Q()
    for column, value in zip(columns, values, strict=True):
        name = column.lstrip("-")
        operator = "lt" if column.startswith("-") != back else "gt"
        condition |= equal & Q(**{f"{name}__{operator}": value})
        equal &= Q(**{name: value})
    return condition


def _flip(column: str) -> str:
    return column[1:] if column.startswith("-") else f"-{column}"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return {"t": value.isoformat()}
    return {"u": str(value)} if isinstance(value, UUID) else value


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return parse_datetime(value["t"]) if "t" in value else UUID(value["u"])
    if not isinstance(value, str | int | float):
        raise TypeError(value)
    if isinstance(value, int) and not abs(value) < MOST_NUMBER:  # floats may be infinite: so sorts what has no value
        raise ValueError(value)
    return value


def _refuse(code: str, hint: str) -> ValidationProblem:
    detail = "The cursor is invalid here."
    return ValidationProblem(detail, errors=[FieldError("cursor", code, detail, hint, "query")])
