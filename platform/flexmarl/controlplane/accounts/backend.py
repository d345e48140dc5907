"""Passwords, with a brake: after `TRIES` wrong ones for a name from an address, none is looked at for a while.

Counted in the cache; a cache that is away brakes nobody.
"""

import hashlib
from typing import Any

import structlog
from django.contrib.auth.backends import ModelBackend
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from flexmarl.controlplane.accounts.models import User

log = structlog.get_logger(__name__)
TRIES = 10
PAUSE_S = 300


class BrakedBackend(ModelBackend):
    """Django's check of a name and a password, for pages and the admin site."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        """Return the person, None when the pair is wrong. Raises PermissionDenied while the brake is on."""
        key = _key(request, username or "")
        if _read(key) >= TRIES:
            log.warning("sign_in_braked", username=username)
            raise PermissionDenied
        user = super().authenticate(request, username=username, password=password, **kwargs)
        if user is None and username:
            _count(key)
        return user

    def user_can_authenticate(self, user: Any) -> bool:
        """Service accounts have no sign-in, and no session either."""
        return not user.is_service and super().user_can_authenticate(user)


def _key(request: HttpRequest | None, username: str) -> str:
    address = request.META.get("REMOTE_ADDR", "") if request is not None else ""
    return "sign-in:" + hashlib.sha256(f"{address} {username}".encode("utf-8", "replace")).hexdigest()


def _read(key: str) -> int:
    try:
        return int(cache.get(key, 0))
    except Exception as error:  # whatever the cache's client raises: people must be able to sign in without it
        log.warning("sign_in_not_counted", error=str(error))
        return 0


def _count(key: str) -> None:
    try:
        cache.add(key, 0, timeout=PAUSE_S)
        cache.incr(key)
    except Exception as error:  # as above; ValueError too, when the count expired between the two calls
        log.warning("sign_in_not_counted", error=str(error))
