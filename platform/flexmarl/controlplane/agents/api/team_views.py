"""Teams over REST."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.contracts.specification.team_settings import TeamSettings
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.agents import actions, queries, versions
from flexmarl.controlplane.agents.api.serializers import (
    NewTeamVersionSerializer,
    TeamCheckedSerializer,
    TeamCheckSerializer,
    TeamDetailSerializer,
    TeamSerializer,
    TeamVersionSerializer,
)
from flexmarl.controlplane.agents.models import TeamDefinition, TeamVersion
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope


class TeamsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}
    parameters = (
        Parameter("project", "Project of the team.", lookup="project_id"),
        Parameter("name", "Exact name; may be repeated.", lookup="name", many=True),
    )
    orderings = {"name": "name", "-name": "-name", "updated_at": "updated_at", "-updated_at": "-updated_at"}

    def query(self, request: Request) -> QuerySet[TeamDefinition]:
        return queries.teams(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[TeamDefinition], dict[str, Any]]:
        return queries.team_row

    @extend_schema(operation_id="teams_list", responses=listing(TeamSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the teams that projects have described."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="teams_save", request=NewTeamVersionSerializer, responses={201: TeamVersionSerializer})
    def post(self, request: Request) -> Response:
        """Save settings as the next version of a team; the first one defines it."""
        body = NewTeamVersionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = queries.team_version_row(actions.save_team(actor_of(request), **body.validated_data))
        return Response(row, status=201, headers={"Location": row["url"]})


class TeamView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="teams_read", responses=TeamDetailSerializer)
    def get(self, request: Request, team_id: UUID) -> Response:
        """Read a team with the settings of its newest version."""
        return Response(queries.team_detail(queries.find_team(actor_of(request), team_id)))


class TeamCheckView(ApiView):
    scopes = {"POST": Scope.RUNS_READ}
    stores_answers = False

    @extend_schema(operation_id="teams_check", request=TeamCheckSerializer, responses=TeamCheckedSerializer)
    def post(self, request: Request) -> Response:
        """Say what of settings saving would refuse; saves nothing."""
        body = TeamCheckSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return Response({"refused": [asdict(one) for one in versions.refusals(TeamSettings, **body.validated_data)]})


class TeamVersionsView(ListView):
    scopes = {"GET": Scope.RUNS_READ}
    orderings = {"-number": "-number", "number": "number"}

    def query(self, request: Request) -> QuerySet[TeamVersion]:
        return queries.team_versions(queries.find_team(actor_of(request), self.kwargs["team_id"]))

    def row_maker(self, request: Request) -> Callable[[TeamVersion], dict[str, Any]]:
        return queries.team_version_row

    @extend_schema(operation_id="teams_versions", responses=listing(TeamVersionSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the versions of a team."""
        return super().get(request, *args, **kwargs)


class TeamVersionView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="teams_version", responses=TeamVersionSerializer)
    def get(self, request: Request, team_id: UUID, number: int) -> Response:
        """Read a version of a team."""
        team = queries.find_team(actor_of(request), team_id)
        return Response(queries.team_version_row(versions.find(queries.team_versions(team), number)))
