"""Tokens and socket tickets over REST. Secrets are in the first answer alone and stored nowhere."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts import actions, queries
from flexmarl.controlplane.accounts.api.projects import kept_project
from flexmarl.controlplane.accounts.api.serializers import (
    MadeTokenSerializer,
    NewTokenSerializer,
    TicketSerializer,
    TokenChangesSerializer,
    TokenSerializer,
)
from flexmarl.controlplane.accounts.api.views import read
from flexmarl.controlplane.accounts.callers import caller_of
from flexmarl.controlplane.accounts.models import ApiToken
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.permissions import SIGNED_IN
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339

WHOSE = Parameter("whose", "`mine`, or `all` that the caller may revoke.", choices=("mine", "all"))


def _in_state(state: str) -> Q:
    ended = Q(expires_at__lte=timezone.now())
    return {
        "revoked": Q(revoked_at__isnull=False),
        "expired": Q(revoked_at=None) & ended,
        "active": Q(revoked_at=None) & ~ended,
    }[state]


FILTERS = (
    Parameter("state", "Current state.", choices=("active", "expired", "revoked"), condition=_in_state),
    Parameter("name__ic", "Part of the name.", lookup="name__icontains"),
    Parameter("owner", "Name of the owner.", lookup="owner__username"),
    Parameter("project", "Allowed in this project.", lookup="projects__contains"),
)


class TokensView(ListView):
    scopes = {"GET": Scope.TOKENS_WRITE, "POST": Scope.TOKENS_WRITE}
    secret_members = ("token",)
    parameters = (*FILTERS, WHOSE)

    def query(self, request: Request) -> QuerySet[ApiToken]:
        if self.values.get("whose") == "all":
            return queries.tokens_kept_by(queries.actor_of(request))
        return queries.tokens_of(queries.account_of(request))

    def row_maker(self, request: Request) -> Callable[[ApiToken], dict[str, Any]]:
        return queries.token_row

    @extend_schema(operation_id="tokens_list", responses=listing(TokenSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List one's own tokens, or all that one may revoke."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="tokens_create", request=NewTokenSerializer, responses={201: MadeTokenSerializer})
    def post(self, request: Request) -> Response:
        """Make a token for oneself. Its text is in this answer and never again: null when the request is repeated."""
        token, text = actions.create_token(queries.actor_of(request), **read(NewTokenSerializer, request))
        return _made(token, text)


class ServiceTokensView(ListView):
    scopes = {"GET": Scope.PROJECTS_ADMIN, "POST": Scope.PROJECTS_ADMIN}
    secret_members = ("token",)
    parameters = FILTERS

    def query(self, request: Request) -> QuerySet[ApiToken]:
        project = kept_project(request, self.kwargs["name"])
        return queries.tokens_of(queries.service_account(project, self.kwargs["user_id"]))

    def row_maker(self, request: Request) -> Callable[[ApiToken], dict[str, Any]]:
        return queries.token_row

    @extend_schema(operation_id="service_tokens_list", responses=listing(TokenSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the tokens of a service account."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="service_tokens_create", request=NewTokenSerializer, responses={201: MadeTokenSerializer}
    )
    def post(self, request: Request, name: str, user_id: UUID) -> Response:
        """Make a token for a service account. Its text is in this answer and never again: null when it is repeated."""
        body = read(NewTokenSerializer, request)
        token, text = actions.create_token(queries.actor_of(request), **body, service_account=(name, user_id))
        return _made(token, text)


class TokenView(ApiView):
    scopes = {"GET": Scope.TOKENS_WRITE, "PATCH": Scope.TOKENS_WRITE, "DELETE": Scope.TOKENS_WRITE}
    versioned = {"PATCH": False, "DELETE": False}

    @extend_schema(operation_id="tokens_read", responses=TokenSerializer)
    def get(self, request: Request, token_id: UUID) -> Response:
        """Read a token one may revoke."""
        token = self._token(request, token_id)
        return Response(queries.token_row(token), headers={"ETag": etag(token.version)})

    @extend_schema(operation_id="tokens_update", request=TokenChangesSerializer, responses=TokenSerializer)
    def patch(self, request: Request, token_id: UUID) -> Response:
        """Rename a token. Honours If-Match."""
        body = read(TokenChangesSerializer, request)
        actions.rename_token(queries.actor_of(request), token_id, **body, precondition=if_match(request))
        token = self._token(request, token_id)
        return Response(queries.token_row(token), headers={"ETag": etag(token.version)})

    @extend_schema(operation_id="tokens_revoke", responses={204: None})
    def delete(self, request: Request, token_id: UUID) -> Response:
        """Revoke a token. It stays in the list as revoked. Honours If-Match."""
        actions.revoke_token(queries.actor_of(request), token_id, if_match(request))
        return Response(status=204)

    def _token(self, request: Request, token_id: UUID) -> ApiToken:
        token = queries.tokens_kept_by(queries.actor_of(request)).filter(pk=token_id).first()
        if token is None:
            raise NotFound("This token does not exist.")
        return token


class TicketsView(ApiView):
    scopes = {"POST": SIGNED_IN}
    stores_answers = False

    @extend_schema(operation_id="ws_tickets_create", request=None, responses={201: TicketSerializer})
    def post(self, request: Request) -> Response:
        """Make a ticket that opens one web socket within a minute, with what the caller may do."""
        text, end = actions.create_ticket(caller_of(request))
        return Response({"ticket": text, "expires_at": rfc3339(end)}, status=201)


def _made(token: ApiToken, text: str) -> Response:
    row = {**queries.token_row(token), "token": text}
    return Response(row, status=201, headers={"Location": row["url"], "ETag": etag(token.version)})
