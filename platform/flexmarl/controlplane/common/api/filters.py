"""Query parameters, strictly: a parameter that a view does not name is refused with the list of legal ones."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import QueryDict
from django.utils.dateparse import parse_datetime
from rest_framework.request import Request

from flexmarl.controlplane.common.api.parsers import is_safe
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem

_LARGEST = 2**31 - 1
"""Largest whole number a parameter may name: what an integer column holds."""
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,3})?")
"""As in JSON: Python reads underscores, spaces and digits of other scripts as well."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter: how its text is read and, for filters, which lookup it becomes."""

    name: str
    description: str
    kind: str = "string"
    """string | integer | number | boolean | date-time | uuid."""
    lookup: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False
    many: bool = False
    """May be repeated; values are joined by OR."""
    condition: Callable[[Any], Q] | None = None
    """For filters that one lookup cannot say."""

    def parse(self, text: str) -> Any:
        """Read one value. Raises ValidationProblem naming the parameter and a legal value."""
        if not is_safe(text):
            raise self._refuse("...", "wrong_type", "Text must not contain NUL characters.")
        if self.choices and text not in self.choices:
            raise self._refuse(text, "unknown_value", f"Legal: {', '.join(self.choices)}.")
        try:
            return _PARSERS[self.kind](text)
        except ValueError:
            raise self._refuse(text, "wrong_type", f"Send {_EXAMPLES[self.kind]}.") from None

    def _refuse(self, text: str, code: str, hint: str) -> ValidationProblem:
        detail = f"{self.name}={text} is not legal."
        return ValidationProblem(detail, errors=[FieldError(self.name, code, detail, hint, "query")])


def within(name: str, value: int, most: int) -> int:
    """Return a number between 1 and `most`; anything else is refused with both ends."""
    if not 1 <= value <= most:
        detail = f"{name}={value} is not between 1 and {most}."
        raise ValidationProblem(detail, errors=[FieldError(name, "out_of_range", detail, f"Set {most}.", "query")])
    return value


def _boolean(text: str) -> bool:
    if text.lower() in {"true", "1"}:
        return True
    if text.lower() in {"false", "0"}:
        return False
    raise ValueError(text)


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    number = int(text)
    if abs(number) > _LARGEST:
        raise ValueError(text)
    return number


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _time(text: str) -> datetime:
    at = parse_datetime(text)
    if at is None or at.tzinfo is None:
        raise ValueError(text)
    try:
        return at.astimezone(UTC)  # PostgreSQL knows fewer offsets than RFC 3339
    except OverflowError:
        raise ValueError(text) from None


_PARSERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date-time": _time,
    "uuid": UUID,
}
_EXAMPLES = {
    "string": "text",
    "integer": f"a whole number up to {_LARGEST}",
    "number": "a finite number",
    "boolean": "true or false",
    "date-time": "an RFC 3339 time such as 2026-01-31T12:00:00Z",
    "uuid": "an id such as 01932c07-7a1e-7c3b-9d2e-3f1b6a9c0d11",
}


def read(request: Request, parameters: Iterable[Parameter]) -> dict[str, Any]:
    """Read all query parameters; absent ones are absent. Repeated ones that may not repeat are refused."""
    return parse(request.query_params, parameters)


def parse(given: QueryDict, parameters: Iterable[Parameter]) -> dict[str, Any]:
    """Read a query strictly, whether it came in an address or as the members of a body."""
    known = {parameter.name: parameter for parameter in parameters}
    unknown = [name for name in given if name not in known]
    if unknown:
        legal = f"Legal: {', '.join(known)}." if known else "No parameters are supported here."
        raise ValidationProblem(
            f"Unknown query parameter {unknown[0]}.",
            errors=[FieldError(n, "unknown_parameter", f"There is no parameter {n}.", legal, "query") for n in unknown],
            extra={"legal_parameters": list(known)},
        )
    values: dict[str, Any] = {}
    for name in given:
        parameter, texts = known[name], given.getlist(name)
        if parameter.many:
            values[name] = [parameter.parse(text) for text in texts]
        elif len(texts) > 1:
            detail = f"{name} may be given once."
            raise ValidationProblem(detail, errors=[FieldError(name, "repeated", detail, "Send one value.", "query")])
        else:
            values[name] = parameter.parse(texts[0])
    return values


def apply(rows: QuerySet[Any], parameters: Iterable[Parameter], values: Mapping[str, Any]) -> QuerySet[Any]:
    """Narrow a query set by the filters among the parameters."""
    for parameter in parameters:
        if parameter.name not in values:
            continue
        value = values[parameter.name]
        if parameter.condition is not None:
            rows = rows.filter(parameter.condition(value))
        elif parameter.lookup:
            rows = rows.filter(**{f"{parameter.lookup}__in" if parameter.many else parameter.lookup: value})
    return rows
