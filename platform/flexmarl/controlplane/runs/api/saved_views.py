"""Saved views over REST."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import StrictSerializer, listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import saved_views
from flexmarl.controlplane.runs.models import SavedView
from flexmarl.controlplane.runs.saved_views import PAGES


class SavedViewSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    page = serializers.ChoiceField(PAGES)
    query = serializers.CharField(allow_blank=True, help_text="Query string of the page, without `?`.")
    shared = serializers.BooleanField()
    project = serializers.CharField()
    owner = serializers.CharField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField(allow_blank=True)


class SavedViewChangeSerializer(StrictSerializer):
    name = serializers.CharField(required=False, max_length=40)
    query = serializers.CharField(required=False, allow_blank=True, max_length=2000)
    shared = serializers.BooleanField(required=False)


class NewSavedViewSerializer(StrictSerializer):
    name = serializers.CharField(max_length=40)
    page = serializers.ChoiceField(PAGES)
    query = serializers.CharField(required=False, allow_blank=True, max_length=2000, default="")
    shared = serializers.BooleanField(required=False, default=False)
    project = serializers.SlugField(required=False, max_length=64, default=DEFAULT_PROJECT)


class SavedViewsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_READ}
    parameters = (
        Parameter("page", "Page of the views.", lookup="page", choices=PAGES),
        Parameter("project", "Name of the project.", lookup="project_id"),
        Parameter("name", "Exact name.", lookup="name"),
    )

    def query(self, request: Request) -> QuerySet[SavedView]:
        return saved_views.saved_views(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[SavedView], dict[str, Any]]:
        return saved_views.row

    @extend_schema(operation_id="saved_views_list", responses=listing(SavedViewSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List one's own views and the shared ones."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="saved_views_create", request=NewSavedViewSerializer, responses={201: SavedViewSerializer}
    )
    def post(self, request: Request) -> Response:
        """Save a view."""
        body = NewSavedViewSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = saved_views.row(saved_views.create(actor_of(request), **body.validated_data))
        return Response(row, status=201, headers={"Location": row["url"]})


class SavedViewView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "PATCH": Scope.RUNS_READ, "DELETE": Scope.RUNS_READ}
    versioned = {"PATCH": False, "DELETE": False}

    @extend_schema(operation_id="saved_views_read", responses=SavedViewSerializer)
    def get(self, request: Request, view_id: UUID) -> Response:
        """Read a view."""
        return _detail(saved_views.find(actor_of(request), view_id))

    @extend_schema(operation_id="saved_views_update", request=SavedViewChangeSerializer, responses=SavedViewSerializer)
    def patch(self, request: Request, view_id: UUID) -> Response:
        """Change a view's name, query or whether it is shared. Honours If-Match."""
        body = SavedViewChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actor = actor_of(request)
        found = saved_views.find(actor, view_id)
        return _detail(saved_views.change(actor, found, precondition=if_match(request), **body.validated_data))

    @extend_schema(operation_id="saved_views_delete", responses={204: None})
    def delete(self, request: Request, view_id: UUID) -> Response:
        """Delete a view. Honours If-Match."""
        actor = actor_of(request)
        saved_views.delete(actor, saved_views.find(actor, view_id), if_match(request))
        return Response(status=204)


def _detail(view: SavedView) -> Response:
    return Response(saved_views.row(view), headers={"ETag": etag(view.version)})
