"""Node tokens over REST. A token's text is in the first answer alone and stored nowhere."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.api.views import read
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import StrictSerializer, listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import node_tokens, queries
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.node_tokens import MOST_OVERLAP_MINUTES, OVERLAP_MINUTES


class NodeTokenSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    node = serializers.CharField(help_text="Name of the node, which no other node has.")
    pool = serializers.CharField(help_text="Pool of its devices, and of the episodes and rewards that it computes.")
    key = serializers.CharField(help_text="The token's public part.")
    job = serializers.UUIDField(
        allow_null=True, help_text="Job of the host that a provider was asked for; null: somebody made the token."
    )
    created_by = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(["active", "revoked"])
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    rotated_at = serializers.DateTimeField(allow_null=True)
    former_until = serializers.DateTimeField(allow_null=True, help_text="Until then the secret before is accepted too.")
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField()
    url = serializers.CharField()


class MadeNodeTokenSerializer(NodeTokenSerializer):
    secret = serializers.CharField(allow_null=True, help_text="The token itself. Shown once: null in a repetition.")


class NewNodeTokenSerializer(StrictSerializer):
    node = serializers.CharField(max_length=64)
    pool = serializers.CharField(max_length=64)


class RotationSerializer(StrictSerializer):
    overlap_minutes = serializers.IntegerField(
        required=False,
        default=OVERLAP_MINUTES,
        min_value=0,
        max_value=MOST_OVERLAP_MINUTES,
        help_text="How long the secret before is accepted too.",
    )


def _in_state(state: str) -> Q:
    return Q(revoked_at__isnull=state == "active")


FILTERS = (
    Parameter("state", "Current state.", choices=("active", "revoked"), condition=_in_state),
    Parameter("node", "Name of the node.", lookup="node"),
    Parameter("pool", "Name of the pool.", lookup="pool"),
)


class NodeTokensView(ListView):
    scopes = {"GET": Scope.CLUSTER_ADMIN, "POST": Scope.CLUSTER_ADMIN}
    secret_members = ("secret",)
    parameters = FILTERS

    def query(self, request: Request) -> QuerySet[NodeToken]:
        return queries.node_tokens(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[NodeToken], dict[str, Any]]:
        return queries.node_token_row

    @extend_schema(operation_id="node_tokens_list", responses=listing(NodeTokenSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the tokens of nodes that work without the installation's secrets."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="node_tokens_create", request=NewNodeTokenSerializer, responses={201: MadeNodeTokenSerializer}
    )
    def post(self, request: Request) -> Response:
        """Make the token of a node. Its text is in this answer and never again: null when the request is repeated."""
        token, text = node_tokens.create(actor_of(request), **read(NewNodeTokenSerializer, request))
        return _made(token, text, 201)


class NodeTokenView(ApiView):
    scopes = {"GET": Scope.CLUSTER_ADMIN, "DELETE": Scope.CLUSTER_ADMIN}
    versioned = {"DELETE": False}

    @extend_schema(operation_id="node_tokens_read", responses=NodeTokenSerializer)
    def get(self, request: Request, token_id: UUID) -> Response:
        """Read a node token."""
        token = queries.node_token_of(actor_of(request), token_id)
        return Response(queries.node_token_row(token), headers={"ETag": etag(token.version)})

    @extend_schema(operation_id="node_tokens_revoke", responses={204: None})
    def delete(self, request: Request, token_id: UUID) -> Response:
        """Revoke a node token: its node stops within seconds. It stays in the list as revoked. Honours If-Match.

        Of a job of a provider the host ends and the job fails.
        """
        node_tokens.revoke(actor_of(request), token_id, if_match(request))
        return Response(status=204)


class NodeTokenRotationView(ApiView):
    scopes = {"POST": Scope.CLUSTER_ADMIN}
    secret_members = ("secret",)
    versioned = {"POST": False}

    @extend_schema(operation_id="node_tokens_rotate", request=RotationSerializer, responses=MadeNodeTokenSerializer)
    def post(self, request: Request, token_id: UUID) -> Response:
        """Give a node token another text, in this answer and never again. Honours If-Match.

        That of a provider's job ends with it and is not rotated (409).
        """
        minutes = read(RotationSerializer, request)["overlap_minutes"]
        token, text = node_tokens.rotate(actor_of(request), token_id, minutes, if_match(request))
        return _made(token, text, 200)


def _made(token: NodeToken, text: str, status: int) -> Response:
    row = queries.node_token_row(token)
    headers = {"Location": row["url"], "ETag": etag(token.version)}
    return Response({**row, "secret": text}, status=status, headers=headers)
