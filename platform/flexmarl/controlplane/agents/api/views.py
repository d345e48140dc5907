"""Agents over REST."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.agents import actions, queries, versions
from flexmarl.controlplane.agents.api.serializers import (
    AgentDetailSerializer,
    AgentSerializer,
    AgentVersionSerializer,
    NewAgentVersionSerializer,
    PreviewRequestSerializer,
    PreviewSerializer,
)
from flexmarl.controlplane.agents.models import AgentDefinition, AgentVersion
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope


class AgentsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = (
        Parameter("project", "Project of the agent.", lookup="project_id"),
        Parameter("role", "Exact role; may be repeated.", lookup="role", many=True),
    )
    orderings = {"created_at": "id", "-created_at": "-id"}

    def query(self, request: Request) -> QuerySet[AgentDefinition]:
        return queries.catalogue(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[AgentDefinition], dict[str, Any]]:
        return queries.agent_row

    @extend_schema(operation_id="agents_list", responses=listing(AgentSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the agents that projects have defined, and the roles that their runs have used."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="agents_save", request=NewAgentVersionSerializer, responses={201: AgentVersionSerializer}
    )
    def post(self, request: Request) -> Response:
        """Save settings as the next version of an agent; the first one defines it."""
        body = NewAgentVersionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = queries.version_row(actions.save_agent(actor_of(request), **body.validated_data))
        return Response(row, status=201, headers={"Location": row["url"]})


class AgentView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="agents_read", responses=AgentDetailSerializer)
    def get(self, request: Request, agent_id: UUID) -> Response:
        """Read an agent with the settings of its newest version."""
        return Response(queries.agent_detail(queries.find_agent(actor_of(request), agent_id)))


class PreviewView(ApiView):
    scopes = {"POST": Scope.RUNS_READ}
    stores_answers = False

    @extend_schema(operation_id="agents_preview", request=PreviewRequestSerializer, responses=PreviewSerializer)
    def post(self, request: Request) -> Response:
        """Render instructions for a seat, as a rollout worker would."""
        body = PreviewRequestSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return Response({"text": actions.preview(**body.validated_data)})


class AgentVersionsView(ListView):
    scopes = {"GET": Scope.RUNS_READ}
    orderings = {"-number": "-number", "number": "number"}

    def query(self, request: Request) -> QuerySet[AgentVersion]:
        return queries.versions(queries.find_agent(actor_of(request), self.kwargs["agent_id"]))

    def row_maker(self, request: Request) -> Callable[[AgentVersion], dict[str, Any]]:
        return queries.version_row

    @extend_schema(operation_id="agents_versions", responses=listing(AgentVersionSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the versions of an agent."""
        return super().get(request, *args, **kwargs)


class AgentVersionView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="agents_version", responses=AgentVersionSerializer)
    def get(self, request: Request, agent_id: UUID, number: int) -> Response:
        """Read a version of an agent."""
        agent = queries.find_agent(actor_of(request), agent_id)
        return Response(queries.version_row(versions.find(queries.versions(agent), number)))
