"""Packages over REST: upload, build, list, read, cancel, archive, restore."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
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
from flexmarl.controlplane.packages import actions, queries
from flexmarl.controlplane.packages.api.serializers import (
    NewPackageSerializer,
    PackageDetailSerializer,
    PackageFileSerializer,
    PackageSerializer,
)
from flexmarl.controlplane.packages.filters import FILTERS, ORDERINGS
from flexmarl.controlplane.packages.models import Package


class PackagesView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.PACKAGES_WRITE}
    parameters = FILTERS
    orderings = ORDERINGS

    def query(self, request: Request) -> QuerySet[Package]:
        return queries.listed(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[Package], dict[str, Any]]:
        return queries.package_row

    @extend_schema(operation_id="packages_list", responses=listing(PackageSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List packages and their versions."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="packages_create", request=NewPackageSerializer, responses={202: PackageDetailSerializer}
    )
    def post(self, request: Request) -> Response:
        """Build a package. A node does it in the background: read it again until it is ready."""
        body = NewPackageSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = queries.package_detail(actions.build(actor_of(request), **body.validated_data))
        return Response(row, status=202, headers={"Location": row["url"], "ETag": etag(row["version"])})


class PackageFilesView(ApiView):
    scopes = {"POST": Scope.PACKAGES_WRITE}
    stores_answers = False  # the same bytes are the same file, however often they come
    parser_classes = (AnyBodyParser,)
    takes = (
        Parameter("name", "Name of the file: a wheel's, or NAME-VERSION.tar.gz.", required=True),
        Parameter("project", "Project of the file."),
    )

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Take the file's name and project in the address, since the body is the file."""
        return self.takes

    @extend_schema(
        operation_id="packages_upload",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        parameters=[
            OpenApiParameter(one.name, OpenApiTypes.STR, "query", required=one.required, description=one.description)
            for one in takes
        ],
        responses={201: PackageFileSerializer},
    )
    def post(self, request: Request) -> Response:
        """Upload a wheel or a source distribution. It is kept for a day unless a package is made of it."""
        if request.content_type.partition(";")[0].strip() != AnyBodyParser.media_type:
            raise UnsupportedMediaType(f"Send the file itself, as {AnyBodyParser.media_type}.")
        actor, project = actor_of(request), self.values.get("project", DEFAULT_PROJECT)
        made = actions.upload(actor, project=project, name=self.values.get("name", ""), body=request._request)
        return Response(made, status=201)


class PackageView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="packages_read", responses=PackageDetailSerializer)
    def get(self, request: Request, package_id: UUID) -> Response:
        """Read a package with its manifest and the log of its build."""
        return _answer(queries.find_package(actor_of(request), package_id))


class CancelBuildView(ApiView):
    scopes = {"POST": Scope.PACKAGES_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="packages_cancel", request=None, responses=PackageDetailSerializer)
    def post(self, request: Request, package_id: UUID) -> Response:
        """Cancel a build that waits or runs. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.cancel(actor, queries.find_package(actor, package_id), if_match(request)))


class ArchivePackageView(ApiView):
    scopes = {"POST": Scope.PACKAGES_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="packages_archive", request=None, responses=PackageDetailSerializer)
    def post(self, request: Request, package_id: UUID) -> Response:
        """Archive a package: new runs can no longer name it. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.archive(actor, queries.find_package(actor, package_id), if_match(request)))


class RestorePackageView(ApiView):
    scopes = {"POST": Scope.PACKAGES_WRITE}
    versioned = {"POST": False}

    @extend_schema(operation_id="packages_restore", request=None, responses=PackageDetailSerializer)
    def post(self, request: Request, package_id: UUID) -> Response:
        """Restore an archived package. Honours If-Match."""
        actor = actor_of(request)
        return _answer(actions.restore(actor, queries.find_package(actor, package_id), if_match(request)))


def _answer(package: Package) -> Response:
    row = queries.package_detail(package)
    return Response(row, headers={"ETag": etag(row["version"])})
