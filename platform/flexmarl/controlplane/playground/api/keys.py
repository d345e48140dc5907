"""Serving keys over REST. A key's text is in the first answer alone and stored nowhere."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.api.views import read
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.playground import keys, queries
from flexmarl.controlplane.playground.api.key_shapes import (
    MadeServingKeySerializer,
    NewServingKeySerializer,
    ServingDaySerializer,
    ServingKeyChangesSerializer,
    ServingKeySerializer,
)
from flexmarl.controlplane.playground.models import ServingDay, ServingKey


def _in_state(state: str) -> Q:
    return Q(revoked_at__isnull=state == "active")


FILTERS = (
    Parameter("state", "Current state.", choices=("active", "revoked"), condition=_in_state),
    Parameter("name__ic", "Part of the name.", lookup="name__icontains"),
    Parameter("model", "Names this model.", lookup="model_names__contains"),
)


class ServingKeysView(ListView):
    scopes = {"GET": Scope.MODELS_USE, "POST": Scope.PROJECTS_ADMIN}
    secret_members = ("secret",)
    parameters = FILTERS

    def query(self, request: Request) -> QuerySet[ServingKey]:
        return queries.keys_of(actor_of(request), self.kwargs["name"])

    def row_maker(self, request: Request) -> Callable[[ServingKey], dict[str, Any]]:
        return queries.key_row

    @extend_schema(operation_id="serving_keys_list", responses=listing(ServingKeySerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the serving keys of a project with what was used with each today (UTC)."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="serving_keys_create",
        request=NewServingKeySerializer,
        responses={201: MadeServingKeySerializer},
    )
    def post(self, request: Request, name: str) -> Response:
        """Make a serving key. Its text is in this answer and never again: null when the request is repeated."""
        actor = actor_of(request)
        made, text = keys.create(actor, name, **read(NewServingKeySerializer, request))
        row = queries.key_row(queries.key_of(actor, name, made.id))
        headers = {"Location": row["url"], "ETag": etag(made.version)}
        return Response({**row, "secret": text}, status=201, headers=headers)


class ServingKeyView(ApiView):
    scopes = {"GET": Scope.MODELS_USE, "PATCH": Scope.PROJECTS_ADMIN, "DELETE": Scope.PROJECTS_ADMIN}
    versioned = {"PATCH": False, "DELETE": False}

    @extend_schema(operation_id="serving_keys_read", responses=ServingKeySerializer)
    def get(self, request: Request, name: str, key_id: UUID) -> Response:
        """Read a serving key."""
        return self._answer(request, name, key_id)

    @extend_schema(
        operation_id="serving_keys_update", request=ServingKeyChangesSerializer, responses=ServingKeySerializer
    )
    def patch(self, request: Request, name: str, key_id: UUID) -> Response:
        """Change its name, quotas or models. Honours If-Match."""
        body = read(ServingKeyChangesSerializer, request)
        keys.update(actor_of(request), name, key_id, body, if_match(request))
        return self._answer(request, name, key_id)

    @extend_schema(operation_id="serving_keys_revoke", responses={204: None})
    def delete(self, request: Request, name: str, key_id: UUID) -> Response:
        """Revoke a serving key. It stays in the list as revoked. Honours If-Match."""
        keys.revoke(actor_of(request), name, key_id, if_match(request))
        return Response(status=204)

    def _answer(self, request: Request, name: str, key_id: UUID) -> Response:
        key = queries.key_of(actor_of(request), name, key_id)
        return Response(queries.key_row(key), headers={"ETag": etag(key.version)})


class ServingDaysView(ListView):
    scopes = {"GET": Scope.MODELS_USE}
    orderings = {"-day": "-day", "day": "day"}

    def query(self, request: Request) -> QuerySet[ServingDay]:
        return queries.days_of(queries.key_of(actor_of(request), self.kwargs["name"], self.kwargs["key_id"]))

    def row_maker(self, request: Request) -> Callable[[ServingDay], dict[str, Any]]:
        return queries.day_row

    @extend_schema(operation_id="serving_keys_days", responses=listing(ServingDaySerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the days (UTC) on which a serving key was used, newest first."""
        return super().get(request, *args, **kwargs)
