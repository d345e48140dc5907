"""Short-lived tokens of a plane: what a worker may say to a child process of its run, and until when.

A token is `v1.<run>.<plane>.<expiry>.<mac>`, signed with the secret of the child it is for. The secret itself stays
with those who host the child (device worker, node agent); whoever plays episodes gets a token that opens generation
alone, of one run, for some minutes. Checked without a database: with the secret, the clock and the child's own run.
"""

import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum

TTL_S = 300.0
"""How long a token is good for; its holder asks for another at half of it."""
LEEWAY_S = 60.0
"""Clocks of hosts may differ by so much."""
_FORM = "v1"


class TokenPlane(StrEnum):
    HOST = "host"
    """Holds the secret: starts, stops and commands the child."""
    ROLLOUT = "rollout"
    """Asks an engine for turns, and takes them back."""


class PlaneRefusalCode(StrEnum):
    UNAUTHORIZED = "unauthorized"
    """Neither the secret nor a token that it signed."""
    TOKEN_FOREIGN = "token_foreign"
    """The token is of another run."""
    TOKEN_EXPIRED = "token_expired"
    TOKEN_PLANE = "token_plane"
    """The token is good, and its plane may not ask for this."""


class PlaneRefused(Exception):
    """A token that is not taken. `code` says why, the text what to do."""

    def __init__(self, code: PlaneRefusalCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class PlaneToken:
    run_id: int
    plane: TokenPlane
    expires_at: int
    """Seconds since the epoch."""


def sign(secret: str, run_id: int, plane: TokenPlane, now: float, ttl_s: float = TTL_S) -> str:
    """Make a token of a child's secret."""
    body = f"{_FORM}.{run_id}.{plane}.{int(now + ttl_s)}"
    return f"{body}.{_mac(secret, body)}"


def check(secret: str, text: str, run_id: int, now: float) -> PlaneToken:
    """Return what a token says. Raises PlaneRefused by cause: of another run, not signed by `secret`, expired."""
    body, _, mac = text.rpartition(".")
    parts = body.split(".")
    if len(parts) != 4 or parts[0] != _FORM or not parts[1].isdigit() or not parts[3].isdigit():
        raise PlaneRefused(PlaneRefusalCode.UNAUTHORIZED, "the bearer secret or token is missing or wrong")
    if int(parts[1]) != run_id:
        raise PlaneRefused(
            PlaneRefusalCode.TOKEN_FOREIGN, f"the token is for run {parts[1]}, this child serves {run_id}"
        )
    if not hmac.compare_digest(mac.encode(), _mac(secret, body).encode()) or parts[2] not in set(TokenPlane):
        raise PlaneRefused(PlaneRefusalCode.UNAUTHORIZED, "the token is not signed by this child's secret")
    if now > int(parts[3]) + LEEWAY_S:
        raise PlaneRefused(PlaneRefusalCode.TOKEN_EXPIRED, "the token has expired: read the engine registry again")
    return PlaneToken(run_id, TokenPlane(parts[2]), int(parts[3]))


def _mac(secret: str, body: str) -> str:
    return hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
