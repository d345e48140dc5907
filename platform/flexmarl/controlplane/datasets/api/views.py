"""Datasets over REST: upload, preview, save, list, read, search rows, download, try scores, archive, restore."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.bodies import AnyBodyParser
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.problems import UnsupportedMediaType
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.datasets import actions, files, judging, queries
from flexmarl.controlplane.datasets.api import serializers as shapes
from flexmarl.controlplane.datasets.filters import FILTERS, ORDERINGS, ROW_FILTERS
from flexmarl.controlplane.datasets.models import Dataset, DatasetVersion, StoredRow


class DatasetsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = FILTERS
    orderings = ORDERINGS

    def query(self, request: Request) -> QuerySet[Dataset]:
        return queries.datasets(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[Dataset], dict[str, Any]]:
        return queries.dataset_row

    @extend_schema(operation_id="datasets_list", responses=listing(shapes.DatasetSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List datasets."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="datasets_save",
        request=shapes.NewDatasetVersionSerializer,
        responses={201: shapes.DatasetVersionSerializer},
    )
    def post(self, request: Request) -> Response:
        """Save the rows of an uploaded file as the next version of a dataset; the first one defines it.

        Every bad row is named, and then nothing is saved.
        """
        body = shapes.NewDatasetVersionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = queries.version_row(actions.save(actor_of(request), **body.validated_data))
        return Response(row, status=201, headers={"Location": row["url"]})


class DatasetFilesView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    stores_answers = False  # the same bytes are the same file, however often they come
    parser_classes = (AnyBodyParser,)
    takes = (
        Parameter("name", "Name of the file; its ending is its format: .jsonl, .csv, .parquet.", required=True),
        Parameter("project", "Project of the file."),
    )

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Take the file's name and project in the address, since the body is the file."""
        return self.takes

    @extend_schema(
        operation_id="datasets_upload",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        parameters=[
            OpenApiParameter(one.name, OpenApiTypes.STR, "query", required=one.required, description=one.description)
            for one in takes
        ],
        responses={201: shapes.UploadedFileSerializer},
    )
    def post(self, request: Request) -> Response:
        """Upload a file. It is kept for a day unless a version is made of it."""
        if request.content_type.partition(";")[0].strip() != AnyBodyParser.media_type:
            raise UnsupportedMediaType(f"Send the file itself, as {AnyBodyParser.media_type}.")
        actor, project = actor_of(request), self.values.get("project", DEFAULT_PROJECT)
        made = files.upload(actor, project=project, name=self.values.get("name", ""), body=request._request)
        return Response({**queries.file_row(made), **actions.first_look(made)}, status=201)


class DatasetPreviewView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    stores_answers = False

    @extend_schema(
        operation_id="datasets_preview",
        request=shapes.DatasetPreviewRequestSerializer,
        responses=shapes.DatasetPreviewSerializer,
    )
    def post(self, request: Request) -> Response:
        """Show what a file would be as a dataset: its first rows as agents will see them, and its sides."""
        body = shapes.DatasetPreviewRequestSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return Response(actions.preview(actor_of(request), **body.validated_data))


class DatasetView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="datasets_read", responses=shapes.DatasetSerializer)
    def get(self, request: Request, dataset_id: UUID) -> Response:
        """Read a dataset."""
        return _answer(queries.find_dataset(actor_of(request), dataset_id))


class ArchiveDatasetView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="datasets_archive", request=None, responses=shapes.DatasetSerializer)
    def post(self, request: Request, dataset_id: UUID) -> Response:
        """Archive a dataset: new runs can no longer name it. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.archive(actor, queries.find_dataset(actor, dataset_id), if_match(request)))


class RestoreDatasetView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="datasets_restore", request=None, responses=shapes.DatasetSerializer)
    def post(self, request: Request, dataset_id: UUID) -> Response:
        """Restore an archived dataset. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.restore(actor, queries.find_dataset(actor, dataset_id), if_match(request)))


class DatasetVersionsView(ListView):
    scopes = {"GET": Scope.RUNS_READ}
    orderings = {"-number": "-number", "number": "number"}

    def query(self, request: Request) -> QuerySet[DatasetVersion]:
        return queries.versions(queries.find_dataset(actor_of(request), self.kwargs["dataset_id"]))

    def row_maker(self, request: Request) -> Callable[[DatasetVersion], dict[str, Any]]:
        return queries.version_row

    @extend_schema(operation_id="datasets_versions", responses=listing(shapes.DatasetVersionSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the versions of a dataset."""
        return super().get(request, *args, **kwargs)


class DatasetVersionView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="datasets_version", responses=shapes.DatasetVersionSerializer)
    def get(self, request: Request, dataset_id: UUID, number: int) -> Response:
        """Read a version of a dataset."""
        return Response(queries.version_row(_version(request, dataset_id, number)))


class DatasetDownloadView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(
        operation_id="datasets_download",
        responses={(200, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY, "The file, byte by byte.")},
    )
    def get(self, request: Request, dataset_id: UUID, number: int) -> StreamingHttpResponse:
        """Download the file that a version was made of."""
        file = _version(request, dataset_id, number).file
        answer = StreamingHttpResponse(_parts(file), content_type="application/octet-stream")
        answer["Content-Length"] = str(file.bytes)
        answer["Content-Disposition"] = f'attachment; filename="{file.digest[:12]}.{file.format}"'
        return answer


def _parts(file: Any) -> Iterator[bytes]:
    yield from files.parts(file)


class DatasetRowsView(ListView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = ROW_FILTERS
    orderings = {"place": "place"}

    def query(self, request: Request) -> QuerySet[StoredRow]:
        version = _version(request, self.kwargs["dataset_id"], self.kwargs["number"])
        return queries.rows(version, self.values.get("q", ""))

    def row_maker(self, request: Request) -> Callable[[StoredRow], dict[str, Any]]:
        return queries.content_row

    @extend_schema(operation_id="datasets_rows", responses=listing(shapes.DatasetContentRowSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the rows of a version in the order of the file."""
        return super().get(request, *args, **kwargs)


class DatasetScoreView(ApiView):
    scopes = {"POST": Scope.RUNS_READ}
    stores_answers = False

    @extend_schema(
        operation_id="datasets_score", request=shapes.ScoreRequestSerializer, responses=shapes.ScoreSerializer
    )
    def post(self, request: Request, dataset_id: UUID, number: int, place: int) -> Response:
        """Score a reply to a row, as a rollout worker would."""
        row = queries.find_row(_version(request, dataset_id, number), place)
        body = shapes.ScoreRequestSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return Response(judging.judged(row, **body.validated_data))


def _version(request: Request, dataset_id: UUID, number: int) -> DatasetVersion:
    return queries.find_version(queries.find_dataset(actor_of(request), dataset_id), number)


def _answer(dataset: Dataset) -> Response:
    row = queries.dataset_row(dataset)
    return Response(row, headers={"ETag": etag(row["version"])})
