"""Experiments, templates, presets and the schema of specifications over REST."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments import actions, queries
from flexmarl.controlplane.experiments.api.serializers import (
    ExperimentSerializer,
    NewExperimentSerializer,
    PluginSerializer,
    PresetSerializer,
    TemplateSerializer,
)
from flexmarl.controlplane.experiments.models import Experiment


class ExperimentsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = (
        Parameter("name", "Exact name.", lookup="name"),
        Parameter("name__ic", "Part of the name.", lookup="name__icontains"),
    )

    def query(self, request: Request) -> QuerySet[Experiment]:
        return queries.experiments(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[Experiment], dict[str, Any]]:
        return queries.experiment_row

    @extend_schema(operation_id="experiments_list", responses=listing(ExperimentSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List experiments."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="experiments_create", request=NewExperimentSerializer, responses={201: ExperimentSerializer}
    )
    def post(self, request: Request) -> Response:
        """Create an experiment."""
        body = NewExperimentSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        made = actions.create_experiment(actor_of(request), **body.validated_data)
        row = queries.experiment_row(made)
        return Response(row, status=201, headers={"Location": row["url"]})


class ExperimentView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="experiments_read", responses=ExperimentSerializer)
    def get(self, request: Request, experiment_id: UUID) -> Response:
        """Read an experiment."""
        found = queries.experiments(actor_of(request)).filter(pk=experiment_id).first()
        if found is None:
            raise NotFound("There is no such experiment.")
        return Response(queries.experiment_row(found))


class TemplatesView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="templates_list", responses=listing(TemplateSerializer))
    def get(self, request: Request) -> Response:
        """List the vetted experiments to start from."""
        return Response(_all(queries.templates()))


class TemplateView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="templates_read", responses=TemplateSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read a template."""
        return Response(queries.template(name))


class PresetsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="presets_list", responses=listing(PresetSerializer))
    def get(self, request: Request) -> Response:
        """List the presets: systems as one option per mechanism."""
        return Response(_all(queries.presets()))


class PluginsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="plugins_list", responses=listing(PluginSerializer))
    def get(self, request: Request) -> Response:
        """List the plug-ins that a specification may name, built-in ones and those of installed distributions."""
        return Response(_all(queries.plugins()))


class ConfigSchemaView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="config_schema_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        """Read the JSON Schema of a specification."""
        return Response(queries.config_schema())


def _all(rows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"results": list(rows), "next": None, "previous": None, "count": len(rows)}
