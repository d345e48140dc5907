"""Many runs at once, and runs made from others: search, bulk verbs, external ids, clone, archive, restore."""

import hashlib
import json
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api import pagination
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, pick_column
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import actions, bulk, lists, queries
from flexmarl.controlplane.runs.api.serializers import (
    BulkAnswerSerializer,
    BulkSerializer,
    CloneSerializer,
    NewRunSerializer,
    RunDetailSerializer,
    RunSerializer,
    SearchSerializer,
)
from flexmarl.controlplane.runs.api.views import detail
from flexmarl.controlplane.runs.bulk import BulkAction

MOST_EXTERNAL = 120


class SearchView(ApiView):
    scopes = {"POST": Scope.RUNS_READ}
    stores_answers = False

    @extend_schema(operation_id="runs_search", request=SearchSerializer, responses=listing(RunSerializer))
    def post(self, request: Request) -> Response:
        """List runs by filters in a body; `next` and `previous` are cursors to send back."""
        body = SearchSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        whole = queries.light(queries.runs(actor_of(request)))
        rows = lists.matching(whole, given["filters"], "/filters")
        ordering = lists.ORDERINGS[given.get("ordering", next(iter(lists.ORDERINGS)))]
        cut = pagination.page(rows, ordering, given, pick_column, whole=whole)
        made, wanted = queries.run_rows(cut.rows), given.get("fields")
        results = made if wanted is None else [{name: row[name] for name in wanted} for row in made]
        return Response({"results": results, "next": cut.next, "previous": cut.previous, "count": cut.count})


class BulkView(ApiView):
    scopes = {"POST": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_bulk", request=BulkSerializer, responses=BulkAnswerSerializer)
    def post(self, request: Request) -> Response:
        """Do one thing to many runs, named or matching a filter. Every run is answered for by itself."""
        body = BulkSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        if ("ids" in given) == ("filter" in given):
            problem = "Send either ids or filter."
            raise ValidationProblem(problem, errors=[FieldError("/ids", "ambiguous", problem)])
        action = BulkAction(
            given["action"], given["reason"], tuple(given["tags"]), given["dry_run"], given["experiment"]
        )
        actor = actor_of(request)
        if "ids" in given:
            return Response(bulk.act_on_ids(actor, given["ids"], action))
        return Response(bulk.act_on_matching(actor, given["filter"], given.get("expected_count"), action))


class ExternalRunView(ApiView):
    scopes = {"PUT": Scope.RUNS_WRITE}

    @extend_schema(
        operation_id="runs_put_by_external_id",
        request=NewRunSerializer,
        responses={200: RunDetailSerializer, 201: RunDetailSerializer},
    )
    def put(self, request: Request, external_id: str) -> Response:
        """Return the run of this id in the project, or create it. The same body may be repeated; another gets 409."""
        body = NewRunSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        if len(external_id) > MOST_EXTERNAL:
            problem = f"An external id has at most {MOST_EXTERNAL} characters."
            raise ValidationProblem(problem, errors=[FieldError("external_id", "too_long", problem, location="query")])
        run, created = actions.create_once(
            actor_of(request),
            body.draft(),
            marks=body.marks(external_id, _digest(request.data)),
            project=body.validated_data["project"],
            **body.options(),
        )
        return detail(run, status=201 if created else 200)


def _digest(body: Any) -> str:
    """Hash what a body says: neither its spelling nor the plan that it was checked against makes it another one."""
    said = {name: value for name, value in body.items() if name != "plan_token"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


class CloneView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="runs_clone", request=CloneSerializer, responses={201: RunDetailSerializer})
    def post(self, request: Request, run_id: str) -> Response:
        """Make a draft of a run's specification with some of it changed."""
        body = CloneSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        run = queries.find_run(actor_of(request), run_id)
        made = actions.clone(
            actor_of(request),
            run,
            body.draft(),
            project=body.validated_data["project"],
            marks=body.marks(),
            **body.options(),
        )
        return detail(made, status=201)


class ArchiveRunsView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="runs_archive", request=None, responses=RunDetailSerializer)
    def post(self, request: Request, run_id: str) -> Response:
        """Take an ended run or a draft out of the lists."""
        return detail(actions.archive(actor_of(request), queries.find_run(actor_of(request), run_id)))


class RestoreView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="runs_restore", request=None, responses=RunDetailSerializer)
    def post(self, request: Request, run_id: str) -> Response:
        """Put an archived run back into the lists."""
        return detail(actions.restore(actor_of(request), queries.find_run(actor_of(request), run_id)))
