"""Checks of a run's consistency over REST: the last result, and checks as operations."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry.api.serializers import ConsistencyCheckSerializer, ConsistencySerializer
from flexmarl.controlplane.telemetry.checks import checks


class ConsistencyView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_consistency", responses=ConsistencySerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read what the last check of the run's rows found, when that was, and the newest check."""
        return Response(checks.consistency(find_run(actor_of(request), run_id)))

    @extend_schema(operation_id="runs_consistency_check", request=None, responses={202: ConsistencyCheckSerializer})
    def post(self, request: Request, run_id: str) -> Response:
        """Check the platform's promises on every row of the run, in the background. An open check is joined."""
        actor = actor_of(request)
        row = checks.check_row(checks.start(actor, find_run(actor, run_id)))
        return Response(row, status=202, headers={"Location": row["url"]})


class CheckView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_consistency_read", responses=ConsistencyCheckSerializer)
    def get(self, request: Request, run_id: str, check_id: UUID) -> Response:
        """Read how far a check is."""
        return Response(checks.check_row(checks.find_check(find_run(actor_of(request), run_id), check_id)))


class CancelCheckView(ApiView):
    scopes = {"POST": Scope.RUNS_ACT}

    @extend_schema(operation_id="runs_consistency_cancel", request=None, responses=ConsistencyCheckSerializer)
    def post(self, request: Request, run_id: str, check_id: UUID) -> Response:
        """Cancel a check that is queued or running. Whoever may act on the run may."""
        actor = actor_of(request)
        run = find_run(actor, run_id)
        return Response(checks.check_row(checks.cancel(actor, run, checks.find_check(run, check_id))))
