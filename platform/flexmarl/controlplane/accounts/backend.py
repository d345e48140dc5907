"""Passwords at the sign-in, behind the brake and under the bound on hashing."""

import secrets
from typing import Any

import structlog
from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts import brake
from flexmarl.controlplane.accounts.brake import Try
from flexmarl.controlplane.accounts.hashing import RETRY_AFTER_S
from flexmarl.controlplane.accounts.models import User
from flexmarl.controlplane.common.problems import Busy

log = structlog.get_logger(__name__)
DEVICE_COOKIE = "flexmarl_device"
DEVICE_S = 90 * 24 * 3600
_SALT = "flexmarl.sign-in.device"


class BrakedBackend(ModelBackend):
    """Django's check of a name and a password, for the sign-in page."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        """Return the person, None when the pair is wrong. Raises PermissionDenied while the brake is on."""
        attempt = Try(username or "", _address(request), _device(request, username or ""))
        if wait_s := brake.begin(attempt):
            log.warning("sign_in_braked", username=username, address=attempt.address, wait_s=wait_s)
            raise _come_back(request, wait_s)
        try:
            user = super().authenticate(request, username=username, password=password, **kwargs)
        except Busy:
            brake.forgive(attempt)
            raise _come_back(request, RETRY_AFTER_S) from None
        if user is not None:
            brake.forgive(attempt)
        return user

    def user_can_authenticate(self, user: Any) -> bool:
        """Service accounts have no sign-in, and no session either."""
        return not user.is_service and super().user_can_authenticate(user)


def wait_of(request: HttpRequest) -> int:
    """Return the seconds after which a refused sign-in may be tried again; 0 when its password was looked at."""
    return int(getattr(request, "sign_in_wait_s", 0))


def remember_device(response: HttpResponse, username: str) -> None:
    """Give a browser in which somebody signed in the cookie by which the brake knows it."""
    value = f"{secrets.token_hex(8)} {username}"
    response.set_signed_cookie(
        DEVICE_COOKIE,
        value,
        _SALT,
        max_age=DEVICE_S,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def _device(request: HttpRequest | None, username: str) -> str:
    """Return what a browser is counted by, when somebody of this name has signed in there."""
    if request is None:
        return ""
    value = request.get_signed_cookie(DEVICE_COOKIE, "", _SALT, max_age=DEVICE_S) or ""
    return value if value.partition(" ")[2] == username and username else ""


def _address(request: HttpRequest | None) -> str:
    return request.META.get("REMOTE_ADDR", "") if request is not None else ""


def _come_back(request: HttpRequest | None, wait_s: int) -> PermissionDenied:
    """Tell the page how long to wait: Django's `authenticate` lets no more through than that nobody was signed in."""
    if request is not None:
        request.sign_in_wait_s = wait_s  # type: ignore[attr-defined]
    return PermissionDenied()
