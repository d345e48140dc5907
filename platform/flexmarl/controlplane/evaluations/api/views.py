"""Suites and evaluations over REST."""

from collections.abc import Callable
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
from flexmarl.controlplane.evaluations import actions, queries, results
from flexmarl.controlplane.evaluations.api.serializers import (
    EvaluationDetailSerializer,
    EvaluationSerializer,
    EvaluationVerbSerializer,
    LeaderboardSerializer,
    NewEvaluationSerializer,
    NewSuiteVersionSerializer,
    SuiteDetailSerializer,
    SuiteSerializer,
    SuiteVersionSerializer,
)
from flexmarl.controlplane.evaluations.filters import FILTERS, SUITE_FILTERS
from flexmarl.controlplane.evaluations.models import ModelEvaluation, Suite, SuiteVersion


class SuitesView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = SUITE_FILTERS
    orderings = {"-created_at": "-id", "created_at": "id"}

    def query(self, request: Request) -> QuerySet[Suite]:
        return queries.suites(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[Suite], dict[str, Any]]:
        return queries.suite_row

    @extend_schema(operation_id="suites_list", responses=listing(SuiteSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List suites."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="suites_save", request=NewSuiteVersionSerializer, responses={201: SuiteVersionSerializer}
    )
    def post(self, request: Request) -> Response:
        """Save the next version of a suite; the first one defines it."""
        body = NewSuiteVersionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = queries.version_row(actions.save_suite(actor_of(request), **body.validated_data))
        return Response(row, status=201, headers={"Location": row["url"]})


class SuiteView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="suites_read", responses=SuiteDetailSerializer)
    def get(self, request: Request, suite_id: UUID) -> Response:
        """Read a suite with the content of its newest version."""
        suite = queries.find_suite(actor_of(request), suite_id)
        return Response({**queries.suite_row(suite), "content": queries.find_version(suite).content})


class SuiteVersionsView(ListView):
    scopes = {"GET": Scope.RUNS_READ}
    orderings = {"-number": "-number", "number": "number"}

    def query(self, request: Request) -> QuerySet[SuiteVersion]:
        return queries.versions(queries.find_suite(actor_of(request), self.kwargs["suite_id"]))

    def row_maker(self, request: Request) -> Callable[[SuiteVersion], dict[str, Any]]:
        return queries.version_row

    @extend_schema(operation_id="suites_versions", responses=listing(SuiteVersionSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the versions of a suite."""
        return super().get(request, *args, **kwargs)


class SuiteVersionView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="suites_version", responses=SuiteVersionSerializer)
    def get(self, request: Request, suite_id: UUID, number: int) -> Response:
        """Read a version of a suite."""
        suite = queries.find_suite(actor_of(request), suite_id)
        return Response(queries.version_row(queries.find_version(suite, number)))


class LeaderboardView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (Parameter("number", "Version of the suite; the newest when absent.", "integer"),)

    @extend_schema(operation_id="suites_leaderboard", responses=LeaderboardSerializer)
    def get(self, request: Request, suite_id: UUID) -> Response:
        """Read the models that played a version of a suite, best first, with what is significant."""
        suite = queries.find_suite(actor_of(request), suite_id)
        return Response(results.leaderboard(queries.find_version(suite, self.values.get("number"))))


class EvaluationsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = FILTERS
    orderings = {"-created_at": "-id", "created_at": "id"}

    def query(self, request: Request) -> QuerySet[ModelEvaluation]:
        return queries.evaluations(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[ModelEvaluation], dict[str, Any]]:
        return queries.evaluation_row

    @extend_schema(operation_id="evaluations_list", responses=listing(EvaluationSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List evaluations."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="evaluations_create", request=NewEvaluationSerializer, responses={201: EvaluationDetailSerializer}
    )
    def post(self, request: Request) -> Response:
        """Have models play a suite: a run that trains nothing for each model and part, which starts by itself."""
        body = NewEvaluationSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given, actor = dict(body.validated_data), actor_of(request)
        suite = queries.find_suite(actor, given.pop("suite"))
        version = queries.find_version(suite, given.pop("suite_version", None))
        row = results.detail(actions.evaluate(actor, version, **given))
        return Response(row, status=201, headers={"Location": row["url"]})


class EvaluationView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "DELETE": Scope.RUNS_WRITE}

    @extend_schema(operation_id="evaluations_read", responses=EvaluationDetailSerializer)
    def get(self, request: Request, evaluation_id: UUID) -> Response:
        """Read an evaluation with its table of models by parts."""
        return Response(results.detail(queries.find_evaluation(actor_of(request), evaluation_id)))

    @extend_schema(operation_id="evaluations_delete", responses={204: None})
    def delete(self, request: Request, evaluation_id: UUID) -> Response:
        """Delete an evaluation that has ended; its runs stay."""
        actor = actor_of(request)
        actions.delete(actor, queries.find_evaluation(actor, evaluation_id))
        return Response(status=204)


class EvaluationVerbView(ApiView):
    """Base of what may be asked of an evaluation."""

    scopes = {"POST": Scope.RUNS_ACT}
    what = ""

    def act(self, request: Request, evaluation_id: UUID) -> Response:
        """Ask for it, and answer with the table."""
        actor, body = actor_of(request), EvaluationVerbSerializer(data=request.data or {})
        body.is_valid(raise_exception=True)
        found = queries.find_evaluation(actor, evaluation_id)
        return Response(results.detail(actions.act(actor, found, self.what, body.validated_data.get("entries"))))


class StopEvaluationView(EvaluationVerbView):
    what = "stop"

    @extend_schema(
        operation_id="evaluations_stop", request=EvaluationVerbSerializer, responses=EvaluationDetailSerializer
    )
    def post(self, request: Request, evaluation_id: UUID) -> Response:
        """Stop what plays or waits: devices are given back, what was played is kept."""
        return self.act(request, evaluation_id)


class ResumeEvaluationView(EvaluationVerbView):
    what = "resume"

    @extend_schema(
        operation_id="evaluations_resume", request=EvaluationVerbSerializer, responses=EvaluationDetailSerializer
    )
    def post(self, request: Request, evaluation_id: UUID) -> Response:
        """Play what is left of stopped cells."""
        return self.act(request, evaluation_id)


class RetryEvaluationView(EvaluationVerbView):
    what = "retry"

    @extend_schema(
        operation_id="evaluations_retry", request=EvaluationVerbSerializer, responses=EvaluationDetailSerializer
    )
    def post(self, request: Request, evaluation_id: UUID) -> Response:
        """Play failed cells anew."""
        return self.act(request, evaluation_id)
