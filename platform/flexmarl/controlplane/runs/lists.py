"""How lists of runs are narrowed and ordered: one grammar for the list, the search, bulk verbs, saved views and pages.

Beside named parameters there are two families, `config.<path>` and `metric.<series>:last`. Their names are checked
against a pattern before anything is built from them, and every part reaches the database as a parameter.
Archived runs are left out unless somebody asks for them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import QueryDict

from flexmarl.contracts.status import SHOWN_STATUSES, STOPPED, RunReason, RunStatus
from flexmarl.controlplane.common.api import filters
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import model_rows
from flexmarl.store.telemetry import metrics

MOST_FAMILY = 8
"""Conditions on configuration and metrics that one list may carry."""


def _search(text: str) -> Q:
    wide = Q(name__icontains=text) | Q(key__icontains=text) | Q(note__icontains=text)
    return wide | Q(tags__contains=[text])


def _experiment(text: str) -> Q:
    try:
        return Q(experiment_id=UUID(text))
    except ValueError:
        return Q(experiment__name=text)


def _shown_in(statuses: list[str]) -> Q:
    """Narrow to runs that are shown in one of some statuses."""
    on_request = Q(state__status=RunStatus.COMPLETED, state__reason=RunReason.USER_REQUEST)
    found = Q(state__status__in=[status for status in statuses if status != STOPPED])
    if RunStatus.COMPLETED in statuses:
        return found | on_request if STOPPED in statuses else found & ~on_request
    return found | on_request if STOPPED in statuses else found


def _of_model(text: str) -> Q:
    try:
        return Q(no__in=model_rows.runs_of(store_connection(), UUID(text)))
    except ValueError:
        return Q(pk__in=[])


def _archived(text: str) -> Q:
    return Q() if text == "any" else Q(archived_at__isnull=text == "false")


def _range(name: str, word: str, lookup: str) -> tuple[Parameter, ...]:
    return (
        Parameter(f"{name}__gte", f"{word} at this time or later.", "date-time", lookup=f"{lookup}__gte"),
        Parameter(f"{name}__lte", f"{word} at this time or before.", "date-time", lookup=f"{lookup}__lte"),
    )


ARCHIVED = Parameter(
    "archived", "`true`, `any`, or the default `false`.", choices=("false", "true", "any"), condition=_archived
)
PARAMETERS = (
    Parameter("status", "May be repeated.", choices=SHOWN_STATUSES, many=True, condition=_shown_in),
    Parameter("project", "May be repeated.", lookup="project_id", many=True),
    Parameter("owner", "User name; may be repeated.", lookup="owner__username", many=True),
    Parameter("tag", "May be repeated; every tag must be there.", many=True, condition=lambda t: Q(tags__contains=t)),
    Parameter("experiment", "Name or id of the experiment.", condition=_experiment),
    Parameter("preset", "May be repeated.", lookup="preset", many=True),
    Parameter("template", "May be repeated.", lookup="template", many=True),
    Parameter("environment", "Type of the environment; may be repeated.", lookup="environment", many=True),
    Parameter("model", "Id of an imported model: runs with a policy that is of it.", condition=_of_model),
    Parameter("name", "Exact name.", lookup="name"),
    Parameter("name__ic", "Part of the name.", lookup="name__icontains"),
    Parameter("key", "Readable key.", lookup="key"),
    Parameter("external_id", "Name of the run with its scheduler.", lookup="external_id"),
    Parameter("parent", "Key of the run it was cloned from.", lookup="parent__key"),
    *_range("created_at", "Made", "created_at"),
    Parameter("created_at__lt", "Created before this time.", "date-time", lookup="created_at__lt"),
    *_range("started_at", "Started", "state__started_at"),
    *_range("finished_at", "Finished", "state__finished_at"),
    ARCHIVED,
    Parameter("q", "Text in name, key or notes, or a whole tag.", condition=_search),
)

ORDERINGS = {
    "-created_at": "-id",
    "created_at": "id",
    "name": "name,id",
    "-name": "-name,-id",
    "status": "state__status,-id",
    "-status": "-state__status,-id",
    "-status_since": "-state__status_since,-id",
    "step": "state__step,-id",
    "-step": "-state__step,-id",
    "reward": "state__reward_key,-id",
    "-reward": "-state__reward_key,-id",
    "updated_at": "updated_at,id",
    "-updated_at": "-updated_at,-id",
}

_CONFIG = re.compile(r"config((?:\.[A-Za-z0-9-]{1,64}(?:_[A-Za-z0-9-]{1,64}){0,8}){1,8})(?:__(gte|lte|n))?")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9]\d{0,30})(\.\d{1,30})?([eE]-?\d{1,2})?")
"""Text that means a number, a truth value or nothing; all other text means itself."""
_METRIC = re.compile(
    r"metric\.([a-z0-9_]{1,40}(?:/[a-z0-9_]{1,40}){0,3})(?:\.([a-z0-9_]{1,20}))?(?:@([A-Za-z0-9_-]{1,64}))?"
    r":last__(gte|lte)"
)


def ordering(name: str) -> str:
    """Return the columns of an ordering. Raises ValidationProblem naming the legal ones."""
    if name not in ORDERINGS:
        detail, hint = f"ordering={name[:80]} is invalid.", f"Legal: {', '.join(ORDERINGS)}."
        raise ValidationProblem(detail, errors=[FieldError("ordering", "unknown_value", detail, hint, "query")])
    return ORDERINGS[name]


def parameters_for(names: Iterable[str]) -> tuple[Parameter, ...]:
    """Return the named parameters and those members of the families that a query names."""
    made = [found for found in map(_family, names) if found is not None]
    if len(made) > MOST_FAMILY:
        detail = f"At most {MOST_FAMILY} conditions on configuration and metrics."
        raise ValidationProblem(detail, errors=[FieldError(made[-1].name, "too_many", detail, "", "query")])
    return (*PARAMETERS, *made)


def narrowed(rows: QuerySet[Run], query: QueryDict) -> QuerySet[Run]:
    """Narrow runs by a query. Raises ValidationProblem naming what is invalid."""
    parameters = parameters_for(query)
    return narrow(rows, parameters, filters.parse(query, parameters))


def matching(rows: QuerySet[Run], members: Mapping[str, Any], pointer: str) -> QuerySet[Run]:
    """Narrow runs by filters in a body; `pointer` says where in the body they stand."""
    query = as_query(members, pointer)
    try:
        return narrowed(rows, query)
    except ValidationProblem as refused:
        raise in_body(refused, pointer) from None


def narrow(rows: QuerySet[Run], parameters: Iterable[Parameter], values: Mapping[str, Any]) -> QuerySet[Run]:
    """Narrow runs by values that were read already; archived ones stay out unless asked for."""
    return filters.apply(rows, parameters, {"archived": "false", **values})


def as_query(members: Mapping[str, Any], pointer: str) -> QueryDict:
    """Write the members of a JSON object as a query, so that both are read by the same rules."""
    query = QueryDict(mutable=True)
    for name, value in members.items():
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(one, str | int | float) for one in values):
            detail = f"{name} takes text, a number, true or false, or a list of them."
            raise ValidationProblem(detail, errors=[FieldError(f"{pointer}/{_escaped(name)}", "wrong_type", detail)])
        query.setlist(str(name), [one if isinstance(one, str) else json.dumps(one) for one in values])
    return query


def in_body(problem: ValidationProblem, pointer: str) -> ValidationProblem:
    """Say of a refused query where it stood in the body."""
    errors = [replace(e, pointer=f"{pointer}/{_escaped(e.pointer)}", location="body") for e in problem.errors]
    return ValidationProblem(problem.detail, errors=errors, extra=problem.extra)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _family(name: str) -> Parameter | None:
    """Return the parameter of a name of a family; None for all other names."""
    if found := _CONFIG.fullmatch(name):
        path, lookup = found[1].strip(".").split("."), found[2]
        if lookup in ("gte", "lte"):
            return Parameter(name, "Compares a number of the specification.", "number", condition=_bound(path, lookup))
        return Parameter(name, "Compares a value of the specification.", condition=_equal(path, lookup == "n"))
    if found := _METRIC.fullmatch(name):
        series, stat, agent, side = found[1], found[2] or "mean", found[3] or "", found[4]
        return Parameter(name, "Compares a newest value.", "number", condition=_last(series, agent, stat, side))
    return None


def _bound(path: list[str], lookup: str) -> Callable[[float], Q]:
    return lambda value: Q(**{"__".join(["spec", *path, lookup]): value})


def _equal(path: list[str], differs: bool) -> Callable[[str], Q]:
    def condition(text: str) -> Q:
        value = json.loads(text) if _SCALAR.fullmatch(text) else text
        same = Q(spec__contains=_nested(path, value))
        return ~same if differs else same

    return condition


def _nested(path: list[str], value: Any) -> Any:
    for part in reversed(path):
        value = {part: value}
    return value


def _last(series: str, agent: str, stat: str, side: str) -> Callable[[float], Q]:
    def condition(value: float) -> Q:
        low, high = (value, None) if side == "gte" else (None, value)
        return Q(no__in=metrics.runs_by_last(store_connection(), series, agent, stat, low, high))

    return condition
