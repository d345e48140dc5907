"""Uploads of models over REST: begin, look, send pieces, give up."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.contracts.uploaded_models import PIECE_BYTES
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.registry import uploads
from flexmarl.controlplane.registry.api.serializers import (
    ModelUploadFileSerializer,
    ModelUploadSerializer,
    NewModelUploadSerializer,
)
from flexmarl.controlplane.registry.models import ModelUpload

OFFSET = Parameter("offset", "Bytes of the file that were sent before; 0 at first.", "integer")


class BytesParser(BaseParser):
    """A body as it is, of at most one byte more than a piece may have."""

    media_type = "application/octet-stream"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Read the body."""
        return stream.read(PIECE_BYTES + 1)


class UploadsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = (Parameter("project", "Name of the project.", lookup="project_id"),)

    def query(self, request: Request) -> QuerySet[ModelUpload]:
        return uploads.uploads(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[ModelUpload], dict[str, Any]]:
        return uploads.upload_row

    @extend_schema(operation_id="model_uploads_list", responses=listing(ModelUploadSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List uploads of models that were not imported yet."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="model_uploads_create", request=NewModelUploadSerializer, responses={201: ModelUploadSerializer}
    )
    def post(self, request: Request) -> Response:
        """Begin an upload of a model: declare its files, then send each in pieces."""
        body = NewModelUploadSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = uploads.upload_row(uploads.create(actor_of(request), **body.validated_data))
        return Response(row, status=201, headers={"Location": row["url"]})


class UploadView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "DELETE": Scope.RUNS_WRITE}

    @extend_schema(operation_id="model_uploads_read", responses=ModelUploadSerializer)
    def get(self, request: Request, upload_id: UUID) -> Response:
        """Read how far an upload is."""
        return Response(uploads.upload_row(uploads.find_upload(actor_of(request), upload_id)))

    @extend_schema(operation_id="model_uploads_delete", request=None, responses={204: None})
    def delete(self, request: Request, upload_id: UUID) -> Response:
        """Give up an upload; its files are deleted."""
        actor = actor_of(request)
        uploads.give_up(actor, uploads.find_upload(actor, upload_id))
        return Response(status=204)


class UploadFileView(ApiView):
    scopes = {"PUT": Scope.RUNS_WRITE}
    rate_class = "ingest"
    parser_classes = (BytesParser,)

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Return where a piece begins."""
        return (OFFSET,) if method == "PUT" else ()

    @extend_schema(
        operation_id="model_uploads_send",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=ModelUploadFileSerializer,
        parameters=[OpenApiParameter("offset", int, description=OFFSET.description)],
    )
    def put(self, request: Request, upload_id: UUID, file: str) -> Response:
        """Send a piece of a file. A refusal with `upload_offset` says where to go on."""
        actor = actor_of(request)
        upload = uploads.find_upload(actor, upload_id)
        piece = request.data if isinstance(request.data, bytes) else b""
        return Response(uploads.receive(actor, upload, file, self.values.get("offset", 0), piece))
