"""Sweeps over REST: list, begin, read, stop, resume, delete."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.sweeps import actions, queries
from flexmarl.controlplane.sweeps.api.serializers import (
    SWEEP_STATES,
    NewSweepSerializer,
    SweepDetailSerializer,
    SweepSerializer,
)
from flexmarl.controlplane.sweeps.models import Sweep

FILTERS = (
    Parameter("name__ic", "Part of the name.", lookup="name__icontains"),
    Parameter("project", "May be repeated.", lookup="project_id", many=True),
    Parameter("experiment", "Id of an experiment.", "uuid", lookup="experiment_id"),
    Parameter("state", "May be repeated.", choices=tuple(SWEEP_STATES), lookup="state", many=True),
)


class SweepsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_ACT}
    parameters = FILTERS

    def query(self, request: Request) -> QuerySet[Sweep]:
        return queries.sweeps(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[Sweep], dict[str, Any]]:
        return queries.sweep_row

    @extend_schema(operation_id="sweeps_list", responses=listing(SweepSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List sweeps."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="sweeps_create", request=NewSweepSerializer, responses={201: SweepDetailSerializer})
    def post(self, request: Request) -> Response:
        """Begin a sweep over a specification."""
        body = NewSweepSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        made = actions.create_sweep(
            actor_of(request),
            given["name"].strip(),
            replace(body.draft(), name=""),
            given["plan"],
            project=given["project"],
            experiment=given["experiment"],
        )
        row = queries.sweep_detail(made)
        return Response(row, status=201, headers={"Location": row["url"]})


class SweepView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "DELETE": Scope.RUNS_ACT}

    @extend_schema(operation_id="sweeps_read", responses=SweepDetailSerializer)
    def get(self, request: Request, sweep_id: UUID) -> Response:
        """Read a sweep with its trials."""
        return Response(queries.sweep_detail(queries.find_sweep(actor_of(request), sweep_id)))

    @extend_schema(operation_id="sweeps_delete", responses={204: None})
    def delete(self, request: Request, sweep_id: UUID) -> Response:
        """Delete a sweep that does not run; its runs stay."""
        actor = actor_of(request)
        actions.delete(actor, queries.find_sweep(actor, sweep_id))
        return Response(status=204)


class StopSweepView(ApiView):
    scopes = {"POST": Scope.RUNS_ACT}

    @extend_schema(operation_id="sweeps_stop", request=None, responses=SweepDetailSerializer)
    def post(self, request: Request, sweep_id: UUID) -> Response:
        """Create no more runs; those that were created go on."""
        actor = actor_of(request)
        return Response(queries.sweep_detail(actions.stop(actor, queries.find_sweep(actor, sweep_id))))


class ResumeSweepView(ApiView):
    scopes = {"POST": Scope.RUNS_ACT}

    @extend_schema(operation_id="sweeps_resume", request=None, responses=SweepDetailSerializer)
    def post(self, request: Request, sweep_id: UUID) -> Response:
        """Go on with a sweep that was stopped."""
        actor = actor_of(request)
        return Response(queries.sweep_detail(actions.resume(actor, queries.find_sweep(actor, sweep_id))))
