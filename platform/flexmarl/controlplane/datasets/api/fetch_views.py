"""Datasets of a hub over REST: ask for a listing or for files, read how far it is, cancel; read a file that came."""

from typing import Any
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.datasets import actions, fetches, files, queries
from flexmarl.controlplane.datasets.api import serializers as shapes


class DatasetFetchesView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(
        operation_id="datasets_fetch",
        request=shapes.NewDatasetFetchSerializer,
        responses={202: shapes.DatasetFetchSerializer},
    )
    def post(self, request: Request) -> Response:
        """List what a repository of the hub has, or fetch splits of one configuration.

        A node does it in the background: read it again until it is done. The `file` of what was fetched is previewed
        and saved like an uploaded one.
        """
        body = shapes.NewDatasetFetchSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = fetches.fetch_row(fetches.ask(actor_of(request), **body.validated_data))
        return Response(row, status=202, headers={"Location": row["url"], "ETag": etag(row["version"])})


class DatasetFetchView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="datasets_fetch_read", responses=shapes.DatasetFetchSerializer)
    def get(self, request: Request, fetch_id: UUID) -> Response:
        """Read how far a fetch is, and what it found. It is kept for a day."""
        return _answer(fetches.fetch_row(fetches.find(actor_of(request), fetch_id)))


class CancelDatasetFetchView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="datasets_fetch_cancel", request=None, responses=shapes.DatasetFetchSerializer)
    def post(self, request: Request, fetch_id: UUID) -> Response:
        """Cancel a fetch that waits or runs. Honours If-Match."""
        actor = actor_of(request)
        return _answer(fetches.fetch_row(fetches.cancel(actor, fetches.find(actor, fetch_id), if_match(request))))


class DatasetFileView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    takes = (Parameter("project", "Project of the file."),)

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Take the project in the address: a digest may be known in several."""
        return self.takes

    @extend_schema(
        operation_id="datasets_file",
        parameters=[
            OpenApiParameter(one.name, OpenApiTypes.STR, "query", description=one.description) for one in takes
        ],
        responses=shapes.UploadedFileSerializer,
    )
    def get(self, request: Request, digest: str) -> Response:
        """Read a file that was uploaded or fetched: its columns, its first rows, and what their names suggest."""
        found = files.find(actor_of(request), self.values.get("project", DEFAULT_PROJECT), digest)
        if found is None:
            raise NotFound("There is no such file. Files of which no version is made are kept for a day.")
        return Response({**queries.file_row(found), **actions.first_look(found)})


def _answer(row: dict[str, Any]) -> Response:
    return Response(row, headers={"ETag": etag(row["version"])})
