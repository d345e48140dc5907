"""Rows that runs were trained on, over REST: those of a run as an archive; import, list, read, archive, restore."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
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
from flexmarl.controlplane.runs import row_exports
from flexmarl.controlplane.runs.models import RowSet
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.runs.row_sets import actions, queries

_TAKES = (
    Parameter("name", "Name under which runs will find the rows.", required=True),
    Parameter("project", "Project of the rows."),
)


class RoleRowsSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField(help_text="That played it in the run of the export.")
    tokenizer = serializers.CharField(help_text="SHA-256; a policy with another one refuses the rows.")
    rows = serializers.IntegerField()
    solved = serializers.IntegerField(help_text="Rows of episodes that solved their task.")
    sampled = serializers.IntegerField(help_text="Tokens that the policy sampled.")


class RowSetSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField()
    source = serializers.CharField(  # type: ignore[assignment]
        help_text="Key of the run that exported them, in its own installation."
    )
    game = serializers.CharField(help_text="Environment, which a run that names the rows has to play.")
    environment = serializers.JSONField(help_text="Of the specification of the run that exported them.")
    roles = serializers.DictField(child=RoleRowsSerializer())
    rows = serializers.IntegerField()
    digest = serializers.CharField(help_text="Of the rows, by which runs pin them.")
    author = serializers.CharField()
    allowed_actions = serializers.ListField(child=serializers.CharField())
    archived_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField(help_text="Version of this row, for If-Match.")
    url = serializers.CharField()


class RowSetsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    stores_answers = False  # the same rows under the same name are imported once, however often they come
    parser_classes = (AnyBodyParser,)
    parameters = queries.FILTERS
    orderings = queries.ORDERINGS

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Take name and project in the address where the body is the export."""
        return _TAKES if method == "POST" else super().parameters_of(method)

    def query(self, request: Request) -> QuerySet[RowSet]:
        return queries.row_sets(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[RowSet], dict[str, Any]]:
        return queries.row

    @extend_schema(operation_id="row_sets_list", responses=listing(RowSetSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List imported rows."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="row_sets_import",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        parameters=[
            OpenApiParameter(one.name, OpenApiTypes.STR, "query", required=one.required, description=one.description)
            for one in _TAKES
        ],
        responses={201: RowSetSerializer},
    )
    def post(self, request: Request) -> Response:
        """Import the folder that `export_rows` wrote, packed as a tar file. One bad row, and nothing is imported."""
        if request.content_type.partition(";")[0].strip() != AnyBodyParser.media_type:
            raise UnsupportedMediaType(f"Send the tar file itself, as {AnyBodyParser.media_type}.")
        project, name = self.values.get("project", DEFAULT_PROJECT), self.values.get("name", "")
        made = actions.imported(actor_of(request), name=name, project=project, body=request._request)
        row = queries.row(made)
        return Response(row, status=201, headers={"Location": row["url"], "ETag": etag(row["version"])})


class RowSetView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="row_sets_read", responses=RowSetSerializer)
    def get(self, request: Request, row_set_id: UUID) -> Response:
        """Read what imported rows are of."""
        return _answer(queries.find(actor_of(request), row_set_id))


class ArchiveRowSetView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="row_sets_archive", request=None, responses=RowSetSerializer)
    def post(self, request: Request, row_set_id: UUID) -> Response:
        """Archive imported rows: new runs can no longer name them. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.archive(actor, queries.find(actor, row_set_id), if_match(request)))


class RestoreRowSetView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="row_sets_restore", request=None, responses=RowSetSerializer)
    def post(self, request: Request, row_set_id: UUID) -> Response:
        """Restore archived rows. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.restore(actor, queries.find(actor, row_set_id), if_match(request)))


def _answer(found: RowSet) -> Response:
    row = queries.row(found)
    return Response(row, headers={"ETag": etag(row["version"])})


class RunRowsView(ApiView):
    scopes = {"GET": Scope.TRAJECTORIES_READ}

    @extend_schema(
        operation_id="runs_rows_archive",
        responses={(200, "application/x-tar"): OpenApiResponse(OpenApiTypes.BINARY, "Lines of JSON and safetensors.")},
    )
    def get(self, request: Request, run_id: str) -> StreamingHttpResponse:
        """Download what a run was trained on, as one tar file that `POST /row-sets` takes in any installation."""
        run = find_run(actor_of(request), run_id, Scope.TRAJECTORIES_READ)
        packed = row_exports.packed(run)
        answer = StreamingHttpResponse(packed.pieces(), content_type="application/x-tar")
        answer["Content-Length"] = str(packed.size)
        answer["Content-Disposition"] = f'attachment; filename="{run.key}-rows.tar"'
        return answer
