"""How the routes below `/v1/` learn which serving key was sent, and what its bearer may do."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.request import Request

from flexmarl.controlplane.accounts.authentication import check_token
from flexmarl.controlplane.accounts.models import ApiToken, User
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.playground import keys
from flexmarl.controlplane.playground.models import ServingKey

KEY_HEADER = "X-Api-Key"


class KeyBearer:
    """Whoever sends a serving key: nobody in particular."""

    is_authenticated = True
    everywhere: frozenset[Scope] = frozenset()

    def __init__(self, key: ServingKey) -> None:
        self.pk: UUID = key.pk
        self.in_projects = key.held


class ServingKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer fmk_<key>.<secret>`, or `X-Api-Key`; other credentials are left to those behind it."""

    def authenticate(self, request: Request) -> tuple[Any, ServingKey] | None:
        """Return the bearer and the key; None when no serving key was sent. Raises InvalidKey."""
        parts = get_authorization_header(request).decode("latin-1").split()
        given = request.headers.get(KEY_HEADER, "") if not parts else parts[1] if _bears(parts) else ""
        if not given.startswith(keys.PREFIX):
            return None
        key = keys.check(given)
        return KeyBearer(key), key

    def authenticate_header(self, request: Request) -> str:
        """Name the scheme for the 401 answer."""
        return 'Bearer realm="flexmarl"'


def _bears(parts: Sequence[str]) -> bool:
    return len(parts) == 2 and parts[0].lower() == "bearer"


class TokenAsApiKey(BaseAuthentication):
    """A person's token in `X-Api-Key`, where Anthropic's clients send keys."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the token's owner and the token; None when none was sent there. Raises Unauthenticated."""
        given = request.headers.get(KEY_HEADER, "")
        if not given or get_authorization_header(request):
            return None
        token = check_token(given, request.META.get("REMOTE_ADDR", ""))
        return token.owner, token

    def authenticate_header(self, request: Request) -> str:
        """Name the scheme for the 401 answer."""
        return 'Bearer realm="flexmarl"'


def key_of(request: Request) -> ServingKey | None:
    """Return the serving key of a request, None for people and their tokens."""
    return request.auth if isinstance(request.auth, ServingKey) else None


def asker_of(request: Request) -> Actor:
    """Return who asks: the project's key, or a person or service account."""
    key = key_of(request)
    if key is None:
        return actor_of(request)
    return Actor(None, f"key {key.name}", frozenset(), request_id_of(request), key.held)


def limits_of(request: Request) -> Sequence[str]:
    """Return the names of the models that the caller is limited to; empty: all that it reaches."""
    key = key_of(request)
    return key.model_names if key else ()
