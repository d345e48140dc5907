"""Models over REST: list, import, read, download, cancel, archive, restore."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.archives import ArchiveStream
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.registry import actions, archives, queries
from flexmarl.controlplane.registry.api.serializers import (
    LanguageModelDetailSerializer,
    LanguageModelSerializer,
    NewLanguageModelSerializer,
)
from flexmarl.controlplane.registry.filters import FILTERS, ORDERINGS
from flexmarl.controlplane.registry.models import LanguageModel


class RegisteredModelsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = FILTERS
    orderings = ORDERINGS

    def query(self, request: Request) -> QuerySet[LanguageModel]:
        return queries.language_models(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[LanguageModel], dict[str, Any]]:
        return queries.model_row

    @extend_schema(operation_id="models_list", responses=listing(LanguageModelSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List models and their versions."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="models_create", request=NewLanguageModelSerializer, responses={202: LanguageModelDetailSerializer}
    )
    def post(self, request: Request) -> Response:
        """Import a model. A node does it in the background: read it again until it is done."""
        body = NewLanguageModelSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = queries.model_detail(actions.import_model(actor_of(request), **body.validated_data))
        return Response(row, status=202, headers={"Location": row["url"], "ETag": etag(row["version"])})


class RegisteredModelView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="models_read", responses=LanguageModelDetailSerializer)
    def get(self, request: Request, model_id: UUID) -> Response:
        """Read a model with what was found in it."""
        return _answer(queries.find_model(actor_of(request), model_id))


class CancelImportView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="models_cancel", request=None, responses=LanguageModelDetailSerializer)
    def post(self, request: Request, model_id: UUID) -> Response:
        """Cancel an import that waits or runs. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.cancel(actor, queries.find_model(actor, model_id), if_match(request)))


class ArchiveModelView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="models_archive", request=None, responses=LanguageModelDetailSerializer)
    def post(self, request: Request, model_id: UUID) -> Response:
        """Archive a model: new runs can no longer name it. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.archive(actor, queries.find_model(actor, model_id), if_match(request)))


class RestoreModelView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="models_restore", request=None, responses=LanguageModelDetailSerializer)
    def post(self, request: Request, model_id: UUID) -> Response:
        """Restore an archived model. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.restore(actor, queries.find_model(actor, model_id), if_match(request)))


class ModelArchiveView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(
        operation_id="models_archive_download",
        responses={(200, "application/x-tar"): OpenApiResponse(OpenApiTypes.BINARY, "A Hugging Face folder, one tar.")},
    )
    def get(self, request: Request, model_id: UUID) -> StreamingHttpResponse:
        """Download a model as a Hugging Face folder."""
        model = queries.find_model(actor_of(request), model_id)
        ready = archives.prepare(model)
        answer = StreamingHttpResponse(ArchiveStream(ready), content_type="application/x-tar")
        answer["Content-Length"] = str(ready.bytes)
        answer["Content-Disposition"] = f'attachment; filename="{model.name}-{model.revision}.tar"'
        return answer


def _answer(model: LanguageModel) -> Response:
    row = queries.model_detail(model)
    return Response(row, headers={"ETag": etag(row["version"])})
