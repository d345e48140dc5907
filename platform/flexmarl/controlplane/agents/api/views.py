"""Agents over REST."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.agents import queries
from flexmarl.controlplane.agents.api.serializers import AgentSerializer
from flexmarl.controlplane.agents.models import AgentDefinition
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope


class AgentsView(ListView):
    scopes = {"GET": Scope.RUNS_READ}
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
        """List the roles that projects have used, with their hues."""
        return super().get(request, *args, **kwargs)


class AgentView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="agents_read", responses=AgentSerializer)
    def get(self, request: Request, agent_id: UUID) -> Response:
        """Read a role of a project."""
        agent = queries.catalogue(actor_of(request)).filter(pk=agent_id).first()
        if agent is None:
            raise NotFound("There is no such agent.")
        return Response(queries.agent_row(agent))
