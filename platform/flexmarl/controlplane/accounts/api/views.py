"""People and tokens over REST."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts import actions, queries
from flexmarl.controlplane.accounts.api.serializers import (
    MadeTokenSerializer,
    MeSerializer,
    NewTokenSerializer,
    NewUserSerializer,
    PreferencesSerializer,
    TokenSerializer,
    UserSerializer,
)
from flexmarl.controlplane.accounts.models import ApiToken, User
from flexmarl.controlplane.common.api.permissions import SIGNED_IN
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope


class MeView(ApiView):
    scopes = {"GET": SIGNED_IN, "PATCH": SIGNED_IN}

    @extend_schema(operation_id="me_read", responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Tell who calls and what they may do."""
        return Response(queries.me(request.user, queries.actor_of(request)))

    @extend_schema(operation_id="me_update", request=PreferencesSerializer, responses=MeSerializer)
    def patch(self, request: Request) -> Response:
        """Change one's own theme and time zone."""
        body = PreferencesSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actor = queries.actor_of(request)
        return Response(queries.me(actions.update_preferences(actor, **body.validated_data), actor))


class UsersView(ListView):
    scopes = {"GET": Scope.USERS_ADMIN, "POST": Scope.USERS_ADMIN}

    def query(self, request: Request) -> QuerySet[User]:
        return queries.users()

    def row_maker(self, request: Request) -> Callable[[User], dict[str, Any]]:
        return queries.user_row

    @extend_schema(operation_id="users_list", responses=listing(UserSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List people."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="users_create", request=NewUserSerializer, responses={201: UserSerializer})
    def post(self, request: Request) -> Response:
        """Create a person."""
        body = NewUserSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        user = actions.create_user(queries.actor_of(request), **body.validated_data)
        row = queries.user_row(user)
        return Response(row, status=201, headers={"Location": row["url"]})


class UserView(ApiView):
    scopes = {"GET": Scope.USERS_ADMIN}

    @extend_schema(operation_id="users_read", responses=UserSerializer)
    def get(self, request: Request, user_id: UUID) -> Response:
        """Read a person."""
        user = queries.users().filter(pk=user_id).first()
        if user is None:
            raise NotFound("There is no such person.")
        return Response(queries.user_row(user))


class TokensView(ListView):
    scopes = {"GET": Scope.TOKENS_WRITE, "POST": Scope.TOKENS_WRITE}
    stores_answers = False  # the answer holds a secret that is stored nowhere

    def query(self, request: Request) -> QuerySet[ApiToken]:
        return queries.tokens_of(request.user.pk)

    def row_maker(self, request: Request) -> Callable[[ApiToken], dict[str, Any]]:
        return queries.token_row

    @extend_schema(operation_id="tokens_list", responses=listing(TokenSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List one's own tokens."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="tokens_create", request=NewTokenSerializer, responses={201: MadeTokenSerializer})
    def post(self, request: Request) -> Response:
        """Make a token for oneself. Its text is in this answer and never again."""
        body = NewTokenSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        token, text = actions.create_token(queries.actor_of(request), **body.validated_data)
        row = {**queries.token_row(token), "token": text}
        return Response(row, status=201, headers={"Location": row["url"]})


class TokenView(ApiView):
    scopes = {"GET": Scope.TOKENS_WRITE, "DELETE": Scope.TOKENS_WRITE}

    @extend_schema(operation_id="tokens_read", responses=TokenSerializer)
    def get(self, request: Request, token_id: UUID) -> Response:
        """Read one of one's own tokens."""
        token = queries.tokens_of(request.user.pk).filter(pk=token_id).first()
        if token is None:
            raise NotFound("There is no such token.")
        return Response(queries.token_row(token))

    @extend_schema(operation_id="tokens_revoke", responses={204: None})
    def delete(self, request: Request, token_id: UUID) -> Response:
        """Revoke a token. It stays in the list as revoked."""
        actions.revoke_token(queries.actor_of(request), token_id)
        return Response(status=204)
