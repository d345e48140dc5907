"""How the API learns who calls: a bearer token, or the browser's session with its CSRF token."""

from datetime import timedelta

import structlog
from django.db.models import Q
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.request import Request

from flexmarl.controlplane.accounts import tokens
from flexmarl.controlplane.accounts.models import ApiToken, User
from flexmarl.controlplane.common.problems import FieldError, Unauthenticated

log = structlog.get_logger(__name__)
_USED_RESOLUTION = timedelta(minutes=1)


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer fmx_<key>.<secret>`."""

    keyword = "bearer"

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the token's owner and the token; None when no bearer token was sent."""
        parts = get_authorization_header(request).decode("latin-1").split()
        if not parts or parts[0].lower() != self.keyword:
            return None
        token = check_token(parts[1] if len(parts) == 2 else "", request.META.get("REMOTE_ADDR", ""))
        return token.owner, token

    def authenticate_header(self, request: Request) -> str:
        """Name the scheme for the 401 answer."""
        return 'Bearer realm="flexmarl"'


class BrowserSessionAuthentication(SessionAuthentication):
    """The signed-in browser. Unsafe methods need the CSRF token; the token is checked for anonymous callers too."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        """Return the session's user; None when nobody is signed in."""
        user = getattr(request._request, "user", None)
        if not isinstance(user, User) or not user.is_active or user.is_service:
            return None
        self.enforce_csrf(request)
        return user, None


def check_token(text: str, address: str) -> ApiToken:
    """Return the usable token of a text. Raises Unauthenticated without saying which part was wrong.

    `address` is the caller's: the peer of the connection, or what a trusted proxy says it was (see common.proxies).
    """
    pair = tokens.split(text)
    token = ApiToken.objects.select_related("owner").filter(key=pair[0]).first() if pair else None
    if pair is None or token is None or not tokens.matches(pair[1], token.secret_hash):
        raise _refused("token_unknown", "Unknown token.")
    if not token.usable or not token.owner.is_active:
        expired = token.revoked_at is None and token.owner.is_active
        code = "token_expired" if expired else "token_revoked"
        raise _refused(code, "The token is expired or revoked. Create a new one.")
    if not token.allows_address(address):
        log.warning("token_from_other_address", key=token.key, address=address)
        raise _refused("token_address", "The token is not allowed from this address.")
    note_use(token)
    return token


def _refused(code: str, detail: str) -> Unauthenticated:
    hint = "Create a token on the Tokens page."
    return Unauthenticated(detail, errors=[FieldError("Authorization", code, detail, hint, "header")])


def note_use(token: ApiToken) -> None:
    """Remember when the token was used, at most once a minute."""
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - _USED_RESOLUTION:
        stale = Q(last_used_at=None) | Q(last_used_at__lt=now - _USED_RESOLUTION)
        ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)
