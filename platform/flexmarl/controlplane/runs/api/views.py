"""Runs over REST."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.contracts.events import Verb
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments import plans
from flexmarl.controlplane.experiments.api.serializers import MeasureSerializer, PlanRequestSerializer, PlanSerializer
from flexmarl.controlplane.runs import actions, deletions, lists, profiling, queries
from flexmarl.controlplane.runs.api.serializers import (
    ActionSerializer,
    NewRunSerializer,
    OperationSerializer,
    RunChangeSerializer,
    RunDetailSerializer,
    RunSerializer,
    VersionSerializer,
)
from flexmarl.controlplane.runs.marks import known_project
from flexmarl.controlplane.runs.model_sources import CheckpointSources
from flexmarl.controlplane.runs.models import Run


class RunsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = lists.PARAMETERS
    orderings = lists.ORDERINGS
    field_names = tuple(RunSerializer().fields)
    key_required = True

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Add the members of the families that this request names."""
        request = getattr(self, "request", None)
        made = () if request is None else lists.parameters_for(request.query_params)[len(lists.PARAMETERS) :]
        return (*super().parameters_of(method), *made) if method in {"GET", "HEAD"} else ()

    def query(self, request: Request) -> QuerySet[Run]:
        made = [parameter for parameter in self.parameters_of("GET") if parameter not in self.parameters]
        return lists.narrow(queries.light(queries.runs(actor_of(request))), (*made, lists.ARCHIVED), self.values)

    def whole(self, request: Request) -> QuerySet[Run]:
        """Return all runs in reach: a run with its specification is wide."""
        return queries.light(queries.runs(actor_of(request)))

    def row_maker(self, request: Request) -> Callable[[Run], dict[str, Any]]:
        return queries.RowMaker()

    @extend_schema(operation_id="runs_list", responses=listing(RunSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List runs. Also takes `config.<path>` and `metric.<series>:last`, see the guide."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="runs_create", request=NewRunSerializer, responses={201: RunDetailSerializer})
    def post(self, request: Request) -> Response:
        """Create a run, and start it when `start` is true."""
        body = NewRunSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        run = actions.create_run(
            actor_of(request), body.draft(), project=given["project"], marks=body.marks(), **body.options()
        )
        return detail(run, status=201)


class PlanView(ApiView):
    scopes = {"POST": Scope.RUNS_READ}
    stores_answers = False

    @extend_schema(operation_id="runs_plan", request=PlanRequestSerializer, responses=PlanSerializer)
    def post(self, request: Request) -> Response:
        """Say what a specification would become: sizes, warnings, devices, what it takes, which devices are best."""
        body = PlanRequestSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actor, project = actor_of(request), body.validated_data["project"]
        if project:
            actor.require(Scope.RUNS_READ, project)
            known_project(project)
        elif actor.may(Scope.RUNS_READ, DEFAULT_PROJECT):
            project = DEFAULT_PROJECT
        draft = replace(body.draft(), project=project, checkpoints=CheckpointSources(actor, project))
        return Response(plans.plan(draft, body.validated_data["predict"], body.chosen_from()))


class MeasureView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="runs_measure", request=MeasureSerializer, responses={201: RunDetailSerializer})
    def post(self, request: Request) -> Response:
        """Start a short run of a team that tells plans how fast its models are on these devices."""
        body = MeasureSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        run = profiling.measure(actor_of(request), body.draft(), body.validated_data["project"])
        return detail(run, status=201)


class RunView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "PATCH": Scope.RUNS_WRITE, "DELETE": Scope.RUNS_WRITE}
    versioned = {"PATCH": False}

    @extend_schema(operation_id="runs_read", responses=RunDetailSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read a run by id or key."""
        return detail(queries.find_run(actor_of(request), run_id))

    @extend_schema(operation_id="runs_update", request=RunChangeSerializer, responses=RunDetailSerializer)
    def patch(self, request: Request, run_id: str) -> Response:
        """Change a run's name, notes, tags or experiment. Honours If-Match."""
        body = RunChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        run = queries.find_run(actor_of(request), run_id)
        given = body.validated_data
        changed = actions.update_run(
            actor_of(request),
            run,
            name=given.get("name"),
            note=given.get("notes"),
            tags=given.get("tags"),
            experiment=given.get("experiment"),
            precondition=if_match(request),
        )
        return detail(changed)

    @extend_schema(operation_id="runs_delete", request=None, responses={202: OperationSerializer})
    def delete(self, request: Request, run_id: str) -> Response:
        """Delete an ended run or a draft with everything of it. Asked again, the answer is the same operation."""
        row = deletions.operation_row(deletions.delete_by_name(actor_of(request), run_id))
        return Response(row, status=202, headers={"Location": row["url"]})


class RunActionView(ApiView):
    scopes = {"POST": Scope.RUNS_ACT}

    @extend_schema(operation_id="runs_act", request=ActionSerializer, responses={202: OperationSerializer})
    def post(self, request: Request, run_id: str, verb: str) -> Response:
        """Ask for a verb. The driver carries it out; the operation says how far it is."""
        body = ActionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        run = queries.find_run(actor_of(request), run_id)
        operation = actions.act(actor_of(request), run, Verb(verb), body.validated_data["reason"], body.options())
        row = queries.operation_row(queries.find_operation(actor_of(request), operation.id))
        return Response(row, status=202, headers={"Location": row["url"]})


class OperationView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="operations_read", responses=OperationSerializer)
    def get(self, request: Request, operation_id: str) -> Response:
        """Read how far an operation is."""
        actor = actor_of(request)
        try:
            return Response(queries.operation_row(queries.find_operation(actor, operation_id)))
        except NotFound:
            return Response(deletions.operation_row(deletions.find_operation(actor, operation_id)))


class VersionsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_versions", responses=listing(VersionSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List the newest version of each policy of a run."""
        return Response(_all(queries.versions(queries.find_run(actor_of(request), run_id))))


def detail(run: Run, status: int = 200) -> Response:
    """Answer with a whole run and its entity tag."""
    row = queries.run_detail(run)
    headers = {"ETag": etag(run.version)} | ({"Location": row["url"]} if status == 201 else {})
    return Response(row, status=status, headers=headers)


def _all(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"results": rows, "next": None, "previous": None, "count": len(rows)}
