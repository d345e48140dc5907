"""Making and checking the text of tokens. A secret is compared by its keyed hash, in constant time."""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from django.conf import settings

PREFIX = "fmx_"
_PATTERN = re.compile(r"([0-9a-z]{12})\.([A-Za-z0-9_-]{43})")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made; the text exists nowhere else."""

    key: str
    secret_hash: str
    text: str


def make(prefix: str = PREFIX) -> NewToken:
    """Draw a key and a secret of 256 bits."""
    key = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    secret = new_secret()
    return NewToken(key, digest(secret), f"{prefix}{key}.{secret}")


def derive(prefix: str, purpose: str) -> NewToken:
    """Return the token of a purpose: the same text every time, which only who has the installation's key can make."""
    key = int.from_bytes(_keyed(f"key of {purpose}")) % len(_ALPHABET) ** 12
    secret = base64.urlsafe_b64encode(_keyed(f"secret of {purpose}")).decode().rstrip("=")
    letters = "".join(_ALPHABET[key // len(_ALPHABET) ** place % len(_ALPHABET)] for place in range(12))
    return NewToken(letters, digest(secret), f"{prefix}{letters}.{secret}")


def new_secret() -> str:
    """Draw a secret of 256 bits."""
    return secrets.token_urlsafe(32)


def new_password() -> str:
    """Draw a password that people can type once."""
    return secrets.token_urlsafe(12)


def split(text: str, prefix: str = PREFIX) -> tuple[str, str] | None:
    """Return (key, secret) of a token's text, None when it is not one."""
    found = _PATTERN.fullmatch(text.removeprefix(prefix)) if text.startswith(prefix) else None
    return (found[1], found[2]) if found else None


def digest(secret: str) -> str:
    """Hash a secret under the installation's pepper."""
    return _keyed(secret).hex()


def matches(secret: str, secret_hash: str) -> bool:
    """Compare a secret with a stored hash."""
    return hmac.compare_digest(digest(secret), secret_hash)


def _keyed(text: str) -> bytes:
    pepper = settings.TOKEN_PEPPER or settings.SECRET_KEY
    return hmac.new(pepper.encode(), text.encode(), hashlib.sha256).digest()
