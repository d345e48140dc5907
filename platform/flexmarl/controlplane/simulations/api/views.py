"""Simulations over REST: list, ask for, read, cancel, delete."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.simulations import actions, queries, recorded_load
from flexmarl.controlplane.simulations.api.serializers import (
    NewSimulationSerializer,
    SimulatedTimelineSerializer,
    SimulationDetailSerializer,
    SimulationSerializer,
    WorkloadSerializer,
)
from flexmarl.controlplane.simulations.filters import FILTERS
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.controlplane.simulations.requests import Comparison, every_preset, read_changes


class SimulationsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = FILTERS

    def query(self, request: Request) -> QuerySet[Simulation]:
        return queries.simulations(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[Simulation], dict[str, Any]]:
        return queries.simulation_row

    @extend_schema(operation_id="simulations_list", responses=listing(SimulationSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List simulations."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="simulations_create", request=NewSimulationSerializer, responses={202: SimulationDetailSerializer}
    )
    def post(self, request: Request) -> Response:
        """Compare presets on a workload. It is played in the background: read it again until it is done."""
        body = NewSimulationSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return accepted(_asked_for(actor_of(request), body.validated_data))


class SimulationView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "DELETE": Scope.RUNS_WRITE}

    @extend_schema(operation_id="simulations_read", responses=SimulationDetailSerializer)
    def get(self, request: Request, simulation_id: UUID) -> Response:
        """Read a simulation with its result."""
        return Response(queries.simulation_detail(queries.find_simulation(actor_of(request), simulation_id)))

    @extend_schema(operation_id="simulations_delete", responses={204: None})
    def delete(self, request: Request, simulation_id: UUID) -> Response:
        """Delete a simulation that has ended."""
        actor = actor_of(request)
        actions.delete(actor, queries.find_simulation(actor, simulation_id))
        return Response(status=204)


class CancelView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="simulations_cancel", request=None, responses=SimulationDetailSerializer)
    def post(self, request: Request, simulation_id: UUID) -> Response:
        """Cancel a simulation that waits or is played."""
        actor = actor_of(request)
        return Response(queries.simulation_detail(actions.cancel(actor, queries.find_simulation(actor, simulation_id))))


class SimulationTimelineView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (Parameter("name", "Preset or alternative."),)

    @extend_schema(operation_id="simulations_timeline", responses=SimulatedTimelineSerializer)
    def get(self, request: Request, simulation_id: UUID) -> Response:
        """Read what every device did under one preset: of the first seed, over the steps that count."""
        found = queries.find_simulation(actor_of(request), simulation_id)
        return Response(queries.timeline(found, self.values.get("name") or next(iter(found.timelines or {}), "")))


class WorkloadsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="workloads_list", responses=listing(WorkloadSerializer))
    def get(self, request: Request) -> Response:
        """List the built-in workloads."""
        rows = list(queries.workloads())
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


def accepted(made: Simulation) -> Response:
    """Answer that it will be played."""
    row = queries.simulation_detail(made)
    return Response(row, status=202, headers={"Location": row["url"]})


def _asked_for(actor: Actor, given: Mapping[str, Any]) -> Simulation:
    """Ask for a comparison on a workload or on a run's record."""
    if bool(given["workload"]) == bool(given["run"]):
        code, pointer = ("ambiguous", "/run") if given["run"] else ("required", "/workload")
        detail = "Send workload or run, not both." if given["run"] else "Send workload or run."
        hint = "A workload is one of /api/v1/workloads; with run, its recorded load is used."
        raise ValidationProblem(detail, errors=[FieldError(pointer, code, detail, hint)])
    run = recorded_load.run_named(actor, given["run"]) if given["run"] else None
    wish = Comparison(
        workload=given["workload"],
        run="" if run is None else run.key,
        presets=tuple(dict.fromkeys(given["presets"])) or every_preset(),
        steps=given["steps"],
        warm_up=given["warm_up"],
        seeds=given["seeds"],
        changes=read_changes(given["changes"]),
    )
    name, project = given["name"].strip(), given["project"]
    leave_out = given["leave_out_refused"] or not given["presets"]
    if run is not None:
        return recorded_load.create(actor, run, wish, name=name, project=project, leave_out=leave_out)
    return actions.create_comparison(actor, wish, name=name, project=project or DEFAULT_PROJECT, leave_out=leave_out)
