"""Projects over REST: their members and service accounts."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts import actions, queries
from flexmarl.controlplane.accounts.api.serializers import (
    MemberChangesSerializer,
    MemberSerializer,
    NewMemberSerializer,
    NewProjectSerializer,
    NewServiceAccountSerializer,
    ProjectChangesSerializer,
    ProjectSerializer,
    ServiceAccountChangesSerializer,
    ServiceAccountSerializer,
)
from flexmarl.controlplane.accounts.api.views import read
from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.accounts.models import Membership, Project, User
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.permissions import SIGNED_IN
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope


class ProjectsView(ListView):
    scopes = {"GET": SIGNED_IN, "POST": Scope.USERS_ADMIN}
    orderings = {"name": "name", "-name": "-name"}
    parameters = (Parameter("name__ic", "Part of the name.", lookup="name__icontains"),)

    def query(self, request: Request) -> QuerySet[Project]:
        return queries.projects(queries.actor_of(request))

    def row_maker(self, request: Request) -> Callable[[Project], dict[str, Any]]:
        actor = queries.actor_of(request)
        return lambda project: queries.project_row(project, actor)

    @extend_schema(operation_id="projects_list", responses=listing(ProjectSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the projects that the caller has a part in."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="projects_create", request=NewProjectSerializer, responses={201: ProjectSerializer})
    def post(self, request: Request) -> Response:
        """Create a project. Its name is an address and never changes."""
        actor = queries.actor_of(request)
        project = actions.create_project(actor, **read(NewProjectSerializer, request))
        row = queries.project_row(project, actor)
        return Response(row, status=201, headers={"Location": row["url"], "ETag": etag(project.version)})


class ProjectView(ApiView):
    scopes = {"GET": SIGNED_IN, "PATCH": Scope.PROJECTS_ADMIN, "DELETE": Scope.USERS_ADMIN}
    versioned = {"PATCH": False, "DELETE": False}

    @extend_schema(operation_id="projects_read", responses=ProjectSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read a project."""
        return self._answer(request, name)

    @extend_schema(operation_id="projects_update", request=ProjectChangesSerializer, responses=ProjectSerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Change a project's description, or, as a cluster admin, its weight between projects.

        Honours If-Match.
        """
        actor = queries.actor_of(request)
        actions.update_project(actor, name, read(ProjectChangesSerializer, request), if_match(request))
        return self._answer(request, name)

    @extend_schema(operation_id="projects_delete", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Delete a project to which nothing belongs any more. Honours If-Match."""
        actions.delete_project(queries.actor_of(request), name, if_match(request))
        return Response(status=204)

    def _answer(self, request: Request, name: str) -> Response:
        actor = queries.actor_of(request)
        project = queries.find_project(actor, name)
        return Response(queries.project_row(project, actor), headers={"ETag": etag(project.version)})


class MembersView(ListView):
    scopes = {"GET": SIGNED_IN, "POST": Scope.PROJECTS_ADMIN}
    orderings = {"username": "user__username", "-username": "-user__username"}
    parameters = (
        Parameter("role", "Role in the project.", lookup="role", choices=tuple(ProjectRole.values), many=True),
        Parameter("username__ic", "Part of the name.", lookup="user__username__icontains"),
    )

    def query(self, request: Request) -> QuerySet[Membership]:
        return queries.members(queries.find_project(queries.actor_of(request), self.kwargs["name"]).name)

    def row_maker(self, request: Request) -> Callable[[Membership], dict[str, Any]]:
        return queries.member_row

    @extend_schema(operation_id="members_list", responses=listing(MemberSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the people of a project. Its members may know each other."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="members_add", request=NewMemberSerializer, responses={201: MemberSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Give a person a role in a project."""
        member = actions.add_member(queries.actor_of(request), name, **read(NewMemberSerializer, request))
        row = queries.member_row(member)
        return Response(row, status=201, headers={"Location": row["url"], "ETag": etag(member.version)})


class MemberView(ApiView):
    scopes = {"GET": SIGNED_IN, "PATCH": Scope.PROJECTS_ADMIN, "DELETE": Scope.PROJECTS_ADMIN}
    versioned = {"PATCH": False, "DELETE": False}

    @extend_schema(operation_id="members_read", responses=MemberSerializer)
    def get(self, request: Request, name: str, user_id: UUID) -> Response:
        """Read a member."""
        member = self._member(request, name, user_id)
        return Response(queries.member_row(member), headers={"ETag": etag(member.version)})

    @extend_schema(operation_id="members_update", request=MemberChangesSerializer, responses=MemberSerializer)
    def patch(self, request: Request, name: str, user_id: UUID) -> Response:
        """Change a member's role. Honours If-Match."""
        body = read(MemberChangesSerializer, request)
        actor = queries.actor_of(request)
        member = actions.change_member(actor, name, user_id, **body, precondition=if_match(request))
        return Response(queries.member_row(member), headers={"ETag": etag(member.version)})

    @extend_schema(operation_id="members_remove", responses={204: None})
    def delete(self, request: Request, name: str, user_id: UUID) -> Response:
        """Take a person out of a project. Their runs stay. Honours If-Match."""
        actions.remove_member(queries.actor_of(request), name, user_id, if_match(request))
        return Response(status=204)

    def _member(self, request: Request, name: str, user_id: UUID) -> Membership:
        return queries.member(queries.find_project(queries.actor_of(request), name).name, user_id)


class ServiceAccountsView(ListView):
    scopes = {"GET": Scope.PROJECTS_ADMIN, "POST": Scope.PROJECTS_ADMIN}
    orderings = {"name": "username", "-name": "-username"}
    parameters = (Parameter("is_active", "Whether its tokens work.", "boolean", lookup="is_active"),)

    def query(self, request: Request) -> QuerySet[User]:
        return queries.service_accounts(kept_project(request, self.kwargs["name"]))

    def row_maker(self, request: Request) -> Callable[[User], dict[str, Any]]:
        return queries.service_account_row

    @extend_schema(operation_id="service_accounts_list", responses=listing(ServiceAccountSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the service accounts of a project."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="service_accounts_create",
        request=NewServiceAccountSerializer,
        responses={201: ServiceAccountSerializer},
    )
    def post(self, request: Request, name: str) -> Response:
        """Create a service account: it belongs to the project and acts through tokens alone."""
        body = read(NewServiceAccountSerializer, request)
        made = actions.create_service_account(queries.actor_of(request), name, body["name"], body["role"])
        account = queries.service_account(name, made.id)
        row = queries.service_account_row(account)
        return Response(row, status=201, headers={"Location": row["url"], "ETag": etag(account.version)})


class ServiceAccountView(ApiView):
    scopes = {"GET": Scope.PROJECTS_ADMIN, "PATCH": Scope.PROJECTS_ADMIN}
    versioned = {"PATCH": False}

    @extend_schema(operation_id="service_accounts_read", responses=ServiceAccountSerializer)
    def get(self, request: Request, name: str, user_id: UUID) -> Response:
        """Read a service account."""
        account = queries.service_account(kept_project(request, name), user_id)
        return Response(queries.service_account_row(account), headers={"ETag": etag(account.version)})

    @extend_schema(
        operation_id="service_accounts_update",
        request=ServiceAccountChangesSerializer,
        responses=ServiceAccountSerializer,
    )
    def patch(self, request: Request, name: str, user_id: UUID) -> Response:
        """Change its role, or switch it off and on. Switched off, its tokens are revoked for good.

        Honours If-Match.
        """
        body = read(ServiceAccountChangesSerializer, request)
        actions.update_service_account(queries.actor_of(request), name, user_id, body, if_match(request))
        account = queries.service_account(name, user_id)
        return Response(queries.service_account_row(account), headers={"ETag": etag(account.version)})


def kept_project(request: Request, name: str) -> str:
    """Return the name of a project whose members the caller keeps. Raises NotFound or PermissionDenied."""
    actor = queries.actor_of(request)
    project = queries.find_project(actor, name)
    actor.require(Scope.PROJECTS_ADMIN, project.name)
    return project.name
