"""How often rows of a dataset were solved, over REST."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.datasets import queries as datasets
from flexmarl.controlplane.runs.solve_rates import MOST_ROWS, MOST_RUNS, solve_rates


class SolveRateSerializer(serializers.Serializer[Any]):
    place = serializers.IntegerField(help_text="Of the row.")
    episodes = serializers.IntegerField(help_text="Finished ones that asked it, of training and of evaluation.")
    solved = serializers.IntegerField()
    mean_score = serializers.FloatField(help_text="Of the team.")


class SolveRatesSerializer(serializers.Serializer[Any]):
    runs = serializers.IntegerField(
        help_text=f"Runs that were counted: the newest {MOST_RUNS} that play this version and that you may read."
    )
    rows = SolveRateSerializer(many=True, help_text="Rows that an episode has asked.")


class SolveRatesView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    takes = (Parameter("place", f"Row; may be repeated, at most {MOST_ROWS}.", "integer", many=True),)

    def parameters_of(self, method: str) -> tuple[Parameter, ...]:
        """Take the rows in the address."""
        return self.takes

    @extend_schema(operation_id="datasets_solve_rates", responses=SolveRatesSerializer)
    def get(self, request: Request, dataset_id: UUID, number: int) -> Response:
        """Say how often rows of a version were solved."""
        actor, places = actor_of(request), self.values.get("place", [])
        dataset = datasets.find_dataset(actor, dataset_id)
        version = datasets.find_version(dataset, number)
        if len(places) > MOST_ROWS:
            detail = f"{len(places)} rows are asked for, at most {MOST_ROWS} are legal."
            raise ValidationProblem(detail, errors=[FieldError("place", "too_many", detail, "?place=1", "query")])
        return Response(solve_rates(actor, dataset, version, places))
