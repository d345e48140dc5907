"""The lines that a run's driver wrote for people, over REST."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.api.serializers import LineSerializer
from flexmarl.controlplane.telemetry.live import feed


class NotesView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("after", "Only events after this sequence number.", "integer"),
        Parameter("limit", f"Lines per answer, 1 to {feed.MAX_LIMIT}.", "integer"),
    )

    @extend_schema(operation_id="runs_notes", responses=listing(LineSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """Read the newest lines for people, newest first: who, what, and the request they follow from."""
        limit = self.values.get("limit", feed.DEFAULT_LIMIT)
        if not 1 <= limit <= feed.MAX_LIMIT:
            detail = f"limit={limit} is not between 1 and {feed.MAX_LIMIT}."
            raise ValidationProblem(detail, errors=[FieldError("limit", "out_of_range", detail, location="query")])
        rows = queries.notes(find_run(actor_of(request), run_id), limit, self.values.get("after", 0))
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})
