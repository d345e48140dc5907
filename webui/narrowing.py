"""Lists that the address narrows: filters in the words of the API, their chips, and the addresses of other pages."""

from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, QueryDict

from flexmarl.controlplane.common.api import filters, pagination
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import pick_column
from flexmarl.controlplane.common.problems import ValidationProblem
from webui.calls import PAGE_ONLY

PAGE = 50


def address_with(request: HttpRequest, **changes: str) -> str:
    """Return the query of this page with parameters changed; empty values leave."""
    query = request.GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return query.urlencode()


def link_with(request: HttpRequest, **changes: str) -> str:
    """Return that query as a link of this page."""
    return f"?{address_with(request, **changes)}"


def chips(query: QueryDict, words: Mapping[str, str], values: Mapping[str, str] = {}) -> list[dict[str, str]]:
    """Return what narrows a list, each with the address without it.

    `words` name the parameters, in their order; `values` what is shown instead of a value.
    """
    found = []
    for name, word in words.items():
        for value in filter(None, query.getlist(name)):
            rest = query.copy()
            rest.pop("cursor", None)
            rest.setlist(name, [other for other in rest.getlist(name) if other != value])
            found.append({"text": word, "value": values.get(value, value), "url": f"?{rest.urlencode()}"})
    return found


def narrowed(
    request: HttpRequest,
    rows: QuerySet[Any],
    parameters: tuple[Parameter, ...],
    row_of: Callable[[Any], dict[str, Any]],
    *,
    order: str = "-id",
    unless_asked: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one page of a list; a filter that is not legal shows why instead.

    `unless_asked` are filters in force where the address says nothing of them.
    """
    wanted = request.GET.copy()
    cursor = wanted.get("cursor")
    for name in [name for name in wanted if name in PAGE_ONLY or name == "ordering" or not wanted[name]]:
        del wanted[name]
    try:
        found = filters.apply(rows, parameters, {**(unless_asked or {}), **filters.parse(wanted, parameters)})
        values = {"limit": PAGE, "count": "exact"} | ({"cursor": cursor} if cursor else {})
        cut = pagination.page(found, order, values, pick_column)
    except ValidationProblem as refused:
        hint = refused.errors[0].hint if refused.errors else ""
        return {"wrong": f"{refused.detail} {hint}".strip(), "rows": [], "filtered": True}
    return {
        "rows": [row_of(one) for one in cut.rows],
        "total": cut.count,
        "filtered": bool(wanted),
        "next_url": link_with(request, cursor=cut.next) if cut.next else "",
        "previous_url": link_with(request, cursor=cut.previous) if cut.previous else "",
    }
