"""The audit trail over REST: a keyset list, and the same rows as CSV."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import HttpResponseBase, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts import audit
from flexmarl.controlplane.accounts.api.serializers import AuditEntrySerializer
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api import filters
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope

FILTERS = (
    Parameter("actor", "User name of the actor.", lookup="actor_name", many=True),
    Parameter("action", "The action, e.g. `run.stop`.", lookup="action", many=True),
    Parameter("target_kind", "Kind of the target, e.g. `run`.", lookup="target_kind", many=True),
    Parameter("target_id", "Id of the target.", lookup="target_id"),
    Parameter("target_name__ic", "Part of the target's name.", lookup="target_name__icontains"),
    Parameter("request_id", "The request that did it.", lookup="request_id"),
    Parameter("project", "Project of the target.", lookup="project", many=True),
    Parameter("since", "At or after this time.", "date-time", lookup="at__gte"),
    Parameter("until", "Before this time.", "date-time", lookup="at__lt"),
)


class AuditView(ListView):
    scopes = {"GET": Scope.AUDIT_READ}
    parameters = FILTERS

    def query(self, request: Request) -> QuerySet[AuditEntry]:
        return audit.entries(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[AuditEntry], dict[str, Any]]:
        return audit.row

    @extend_schema(operation_id="audit_list", responses=listing(AuditEntrySerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List who did what to what, newest first. Project admins see the rows of their projects."""
        return super().get(request, *args, **kwargs)


class AuditEntryView(ApiView):
    scopes = {"GET": Scope.AUDIT_READ}

    @extend_schema(operation_id="audit_read", responses=AuditEntrySerializer)
    def get(self, request: Request, entry_id: UUID) -> Response:
        """Read one row."""
        entry = audit.entries(actor_of(request)).filter(pk=entry_id).first()
        if entry is None:
            raise NotFound("This audit entry does not exist.")
        return Response(audit.row(entry))


class AuditExportView(ApiView):
    scopes = {"GET": Scope.AUDIT_READ}
    parameters = FILTERS

    @extend_schema(operation_id="audit_export", responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request) -> HttpResponseBase:
        """Answer the rows of the list as CSV, all of them, as a stream."""
        rows = filters.apply(audit.entries(actor_of(request)), FILTERS, self.values)
        lines = _lines(rows)
        on_loop = isinstance(request._request, ASGIRequest)
        answer = StreamingHttpResponse(
            audit.from_thread(lines) if on_loop else lines, content_type="text/csv; charset=utf-8"
        )
        answer["Content-Disposition"] = 'attachment; filename="audit.csv"'
        return answer


def _lines(rows: QuerySet[AuditEntry]) -> Iterator[str]:
    yield _line(list(audit.COLUMNS))
    yield from audit.chunks(rows, lambda row: _line([_text(row[name]) for name in audit.COLUMNS]))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return audit.cell(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _line(cells: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)
    return out.getvalue()
