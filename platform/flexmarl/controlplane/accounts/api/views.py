"""People over REST: oneself, and all people for those who keep them."""

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from django.contrib.auth import update_session_auth_hash
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts import actions, queries, tokens
from flexmarl.controlplane.accounts.api.serializers import (
    MadeUserSerializer,
    MeSerializer,
    NewPasswordSerializer,
    NewUserSerializer,
    PreferencesSerializer,
    UserChangesSerializer,
    UserSerializer,
)
from flexmarl.controlplane.accounts.choices import Role
from flexmarl.controlplane.accounts.models import User
from flexmarl.controlplane.common.api import throttling
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.permissions import SIGNED_IN
from flexmarl.controlplane.common.api.serializers import StrictSerializer, listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope


class MeView(ApiView):
    scopes = {"GET": SIGNED_IN, "PATCH": SIGNED_IN}

    @extend_schema(operation_id="me_read", responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Tell who calls, what they are and what they may do."""
        return Response(queries.me(queries.account_of(request), queries.actor_of(request)))

    @extend_schema(operation_id="me_update", request=PreferencesSerializer, responses=MeSerializer)
    def patch(self, request: Request) -> Response:
        """Change one's own theme, density, time zone and keys."""
        actor = queries.actor_of(request)
        return Response(queries.me(actions.update_preferences(actor, **read(PreferencesSerializer, request)), actor))


class PasswordView(ApiView):
    scopes = {"POST": SIGNED_IN}
    stores_answers = False
    rate_class: ClassVar[str] = throttling.SECRET

    @extend_schema(operation_id="me_change_password", request=NewPasswordSerializer, responses={204: None})
    def post(self, request: Request) -> Response:
        """Change one's own password. Other sessions end; this one goes on under a new key."""
        user = actions.change_own_password(queries.actor_of(request), **read(NewPasswordSerializer, request))
        update_session_auth_hash(request._request, user)
        return Response(status=204)


class UsersView(ListView):
    scopes = {"GET": Scope.USERS_ADMIN, "POST": Scope.USERS_ADMIN}
    secret_members = ("password",)
    parameters = (
        Parameter("role", "Installation role.", lookup="role", choices=tuple(Role.values), many=True),
        Parameter("is_active", "Whether they may sign in.", "boolean", lookup="is_active"),
        Parameter("username__ic", "Part of the name.", lookup="username__icontains"),
        Parameter("project", "Members of a project.", lookup="memberships__project__name"),
    )

    def query(self, request: Request) -> QuerySet[User]:
        return queries.users()

    def row_maker(self, request: Request) -> Callable[[User], dict[str, Any]]:
        return queries.user_row

    @extend_schema(operation_id="users_list", responses=listing(UserSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List people."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="users_create", request=NewUserSerializer, responses={201: MadeUserSerializer})
    def post(self, request: Request) -> Response:
        """Create a person. Without a password one is made; it is in this answer and never again."""
        body = read(NewUserSerializer, request)
        made = None if body.get("password") else tokens.new_password()
        user = actions.create_user(queries.actor_of(request), **{**body, "password": made or body["password"]})
        row = {**queries.user_row(user), **({"password": made} if made else {})}
        return Response(row, status=201, headers={"Location": row["url"], "ETag": etag(user.version)})


class UserView(ApiView):
    scopes = {"GET": Scope.USERS_ADMIN, "PATCH": Scope.USERS_ADMIN}
    versioned = {"PATCH": False}

    @extend_schema(operation_id="users_read", responses=UserSerializer)
    def get(self, request: Request, user_id: UUID) -> Response:
        """Read a person."""
        user = queries.user(user_id)
        return Response(queries.user_row(user), headers={"ETag": etag(user.version)})

    @extend_schema(operation_id="users_update", request=UserChangesSerializer, responses=UserSerializer)
    def patch(self, request: Request, user_id: UUID) -> Response:
        """Change a person's role or address, or switch them off and on. Honours If-Match."""
        body = read(UserChangesSerializer, request)
        user = actions.update_user(queries.actor_of(request), user_id, body, if_match(request))
        return Response(queries.user_row(user), headers={"ETag": etag(user.version)})


class UserPasswordView(ApiView):
    scopes = {"POST": Scope.USERS_ADMIN}
    secret_members = ("password",)

    @extend_schema(operation_id="users_reset_password", request=None, responses=MadeUserSerializer)
    def post(self, request: Request, user_id: UUID) -> Response:
        """Give a person a new password. It is in this answer and never again; their sessions end."""
        user, password = actions.reset_password(queries.actor_of(request), user_id)
        return Response({**queries.user_row(user), "password": password})


def read(serializer: type[StrictSerializer], request: Request) -> dict[str, Any]:
    """Read a request's body. Raises what the API answers as a problem."""
    body = serializer(data=request.data)
    body.is_valid(raise_exception=True)
    return dict(body.validated_data)
