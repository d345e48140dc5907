"""The base of every API view: permission by declaration, strict parameters, idempotent POSTs, one shape of lists."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import structlog
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from flexmarl.controlplane.common.api import conditional, filters, idempotency, pagination, trimming
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.parsers import is_safe
from flexmarl.controlplane.common.api.permissions import PUBLIC
from flexmarl.controlplane.common.problems import NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope


class ApiView(APIView):
    """Declares `scopes` per method, query `parameters` of GET, and whether a POST needs an Idempotency-Key."""

    scopes: ClassVar[Mapping[str, Scope | str]] = {}
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    key_required: ClassVar[bool] = False
    lists: ClassVar[bool] = False
    """True for views whose answer has `results`: they take `fields`."""
    field_names: ClassVar[tuple[str, ...]] = ()
    """Legal members of `fields`; when none are named, those of the rows."""
    stores_answers: ClassVar[bool] = True
    """False for POSTs that change nothing, such as plans."""
    versioned: ClassVar[Mapping[str, bool]] = {}
    """Method that honours If-Match -> whether it needs it."""
    secret_members: ClassVar[tuple[str, ...]] = ()
    """Members of an answer that are stored nowhere: null when it is repeated."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Run a POST that carries an Idempotency-Key in one transaction with its stored answer."""
        if request.method == "POST" and self.stores_answers and idempotency.HEADER in request.headers:
            with transaction.atomic():
                return super().dispatch(request, *args, **kwargs)
        return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check caller, rate, parameters and the key, in this order."""
        super().initial(request, *args, **kwargs)
        if not all(is_safe(value) for value in kwargs.values() if isinstance(value, str)):
            raise NotFound("Not found: a part of the path is not valid text.")
        if "run_id" in kwargs:
            structlog.contextvars.bind_contextvars(run=kwargs["run_id"])
        self.values = filters.read(request, self.parameters_of(request.method or "GET"))
        self.key = ""
        if request.method == "POST" and self.stores_answers:
            self.key = idempotency.key_of(request, self.key_required)
            if self.key:
                idempotency.begin(request, self.key)

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Return the query parameters a method takes."""
        if method not in {"GET", "HEAD"}:
            return ()
        return (*self.parameters, trimming.FIELDS) if self.lists else self.parameters

    def handle_exception(self, exc: Exception) -> Response:
        """Answer a replay from the store, everything else as a problem."""
        if isinstance(exc, idempotency.ReplayedAnswer):
            return idempotency.replayed(exc)
        return super().handle_exception(exc)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Trim rows, add rate-limit fields and an entity tag, and store the answer of a POST that carried a key."""
        if isinstance(response, Response) and self.lists and "fields" in getattr(self, "values", {}):
            try:
                trimming.trim(response, self.values["fields"], self.field_names)
            except ValidationProblem as problem:
                response = self.handle_exception(problem)
        response = super().finalize_response(request, response, *args, **kwargs)
        for name, value in getattr(request._request, "rate_limit_headers", {}).items():
            response.headers.setdefault(name, value)
        if getattr(self, "key", "") and idempotency.REPLAYED not in response:
            idempotency.finish(request, self.key, response, self.secret_members)
        conditional.tag(request, response)
        return response


class ListView(ApiView):
    """A keyset list. Sub-classes give `query` and `row`; filters and orderings are declarations."""

    orderings: ClassVar[Mapping[str, str]] = {"-created_at": "-id", "created_at": "id"}
    """Legal `ordering` values -> columns, the last of them unique. The first is the default."""
    lists = True

    def query(self, request: Request) -> QuerySet[Any]:
        """Return all rows the caller may see."""
        raise NotImplementedError(type(self).__name__)

    def whole(self, request: Request) -> QuerySet[Any] | None:
        """Return all rows in reach without filters, for lists of wide rows: pages are then cut by key."""
        return None

    def row_maker(self, request: Request) -> Callable[[Any], dict[str, Any]]:
        """Return the function that turns a row into JSON values."""
        raise NotImplementedError(type(self).__name__)

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Add paging, ordering and trimming to the filters."""
        if method not in {"GET", "HEAD"}:
            return ()
        paging = [pagination.LIMIT, pagination.CURSOR, pagination.COUNT]
        if len(self.orderings) > 1:
            paging.append(Parameter("ordering", "Order of the rows.", choices=tuple(self.orderings)))
        return (*super().parameters_of(method), *paging)

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Answer one page."""
        rows = filters.apply(self.query(request), self.parameters, self.values)
        ordering = self.orderings[self.values.get("ordering", next(iter(self.orderings)))]
        cut = pagination.page(rows, ordering, self.values, pick_column, whole=self.whole(request))
        return Response(pagination.envelope(request, cut, self.rows_of(request, cut.rows)))

    def rows_of(self, request: Request, found: Sequence[Any]) -> list[dict[str, Any]]:
        """Turn the rows of a page into JSON values; a list whose rows need more queries reads them for all at once."""
        make = self.row_maker(request)
        return [make(row) for row in found]


def pick_column(row: Any, column: str) -> Any:
    """Read a column of a row, following `__` to related rows."""
    for part in column.split("__"):
        row = getattr(row, part)
    return row


class PublicView(ApiView):
    """A view that anybody may read: health, schema."""

    scopes = {"GET": PUBLIC}
    throttle_classes = ()
