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
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments import actions, queries
from flexmarl.controlplane.experiments.api.serializers import (
    VERDICTS,
    ExperimentChangeSerializer,
    ExperimentDetailSerializer,
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
        Parameter("project", "May be repeated.", lookup="project_id", many=True),
        Parameter("verdict", "May be repeated.", choices=tuple(VERDICTS), lookup="verdict", many=True),
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
        operation_id="experiments_create", request=NewExperimentSerializer, responses={201: ExperimentDetailSerializer}
    )
    def post(self, request: Request) -> Response:
        """Create an experiment."""
        body = NewExperimentSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        made = actions.create_experiment(actor_of(request), **body.validated_data)
        row = queries.experiment_detail(made)
        return Response(row, status=201, headers={"Location": row["url"]})


class ExperimentView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "PATCH": Scope.RUNS_WRITE, "DELETE": Scope.RUNS_WRITE}
    versioned = {"PATCH": False}

    @extend_schema(operation_id="experiments_read", responses=ExperimentDetailSerializer)
    def get(self, request: Request, experiment_id: UUID) -> Response:
        """Read an experiment."""
        return _detail(queries.find_experiment(actor_of(request), experiment_id))

    @extend_schema(
        operation_id="experiments_update", request=ExperimentChangeSerializer, responses=ExperimentDetailSerializer
    )
    def patch(self, request: Request, experiment_id: UUID) -> Response:
        """Change the question, notes, baseline or verdict of an experiment. Honours If-Match."""
        body = ExperimentChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actor = actor_of(request)
        found = queries.find_experiment(actor, experiment_id)
        actions.update_experiment(actor, found, body.validated_data, if_match(request))
        return _detail(queries.find_experiment(actor, experiment_id))

    @extend_schema(operation_id="experiments_delete", responses={204: None})
    def delete(self, request: Request, experiment_id: UUID) -> Response:
        """Delete an experiment; its runs stay."""
        actor = actor_of(request)
        actions.delete_experiment(actor, queries.find_experiment(actor, experiment_id))
        return Response(status=204)


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


def _detail(found: Experiment) -> Response:
    return Response(queries.experiment_detail(found), headers={"ETag": etag(found.version)})


def _all(rows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"results": list(rows), "next": None, "previous": None, "count": len(rows)}
