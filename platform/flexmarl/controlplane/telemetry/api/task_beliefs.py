"""Tasks of a run over REST: what its task sampler believes of each."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter, within
from flexmarl.controlplane.common.api.pagination import CURSOR, Page, envelope
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import task_beliefs


class TaskBeliefSerializer(serializers.Serializer[Any]):
    task = serializers.IntegerField(help_text="Its number in the set, from 0.")
    played_after = serializers.IntegerField(
        allow_null=True, help_text="Steps that were done once its last group had settled. Null: not played yet."
    )
    belief = serializers.CharField(help_text="What the sampler believes of it.")


class TaskBeliefsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("played", "yes: only tasks that were played; no: only the others.", choices=("yes", "no")),
        Parameter("limit", f"Tasks per page, 1 to {task_beliefs.MAX_LIMIT}.", "integer"),
        CURSOR,
    )

    @extend_schema(operation_id="runs_tasks", responses=listing(TaskBeliefSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List the tasks that the run's task sampler chooses from, as of the driver's last snapshot.

        Empty for a sampler that chooses none.
        """
        values = self.values
        found = task_beliefs.page(
            find_run(actor_of(request), run_id),
            played=None if "played" not in values else values["played"] == "yes",
            cursor=values.get("cursor"),
            limit=within("limit", values.get("limit", task_beliefs.DEFAULT_LIMIT), task_beliefs.MAX_LIMIT),
        )
        return Response(envelope(request, Page(found.rows, found.next, None, found.count), found.rows))
