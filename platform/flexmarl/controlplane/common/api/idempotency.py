"""Safe retries of POSTs: the answer is stored in the transaction of what the request did.

Either both exist or neither does, so a repetition never acts twice. Only answers that changed something (2xx) are
kept, for 24 hours; a refused request may be sent again under its key. A secret is in the first answer alone: it is
stored nowhere, so a repetition is answered with null in its place.
"""

import hashlib
import hmac
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.common.models import StoredAnswer
from flexmarl.controlplane.common.problems import (
    FieldError,
    IdempotencyInProgress,
    IdempotencyMismatch,
    ValidationProblem,
)

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
_KEEP = timedelta(hours=24)
_MAX_KEY = 200
_DROP_AT_ONCE = 20
_KEPT_HEADERS = ("Location", "ETag")


class ReplayedAnswer(Exception):
    """Carries the stored answer out of a view's preparation."""

    def __init__(self, answer: StoredAnswer) -> None:
        super().__init__(answer.key)
        self.answer = answer


def key_of(request: Request, required: bool) -> str:
    """Return the request's key, '' when it has none. Raises ValidationProblem when it is required or malformed."""
    key = request.headers.get(HEADER, "").strip()
    if not key and required:
        raise _refuse("required", f"Send {HEADER} with a new random value, e.g. a UUID.")
    if len(key) > _MAX_KEY:
        raise _refuse("too_long", f"At most {_MAX_KEY} characters.")
    return key


def begin(request: Request, key: str) -> None:
    """Claim the key for this transaction. Raises ReplayedAnswer, IdempotencyMismatch or IdempotencyInProgress."""
    owner, digest = _owner(request), _digest(request)
    lock = hashlib.sha256(f"{owner} {request.method} {request.path} {key}".encode()).digest()[:8]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [int.from_bytes(lock, "big", signed=True)])
        if not cursor.fetchone()[0]:
            raise IdempotencyInProgress(
                "Repeat the request when the first one has been answered.", headers={"Retry-After": "1"}
            )
    answer = StoredAnswer.objects.filter(owner=owner, method=request.method, path=request.path, key=key).first()
    if answer is None:
        return
    if answer.expires_at <= timezone.now():
        answer.delete()
        return
    if answer.body_hash != digest:
        raise IdempotencyMismatch("Use a new key for a new request, or repeat the first body exactly.")
    raise ReplayedAnswer(answer)


def replayed(replay: ReplayedAnswer) -> Response:
    """Rebuild the stored answer."""
    answer = replay.answer
    return Response(answer.body, status=answer.status, headers={**answer.headers, REPLAYED: "true"})


def finish(request: Request, key: str, response: Response, secrets: Collection[str] = ()) -> None:
    """Store an answer that changed something, in the same transaction; members that are secrets as null."""
    if not 200 <= response.status_code < 300:
        return
    StoredAnswer.objects.create(
        owner=_owner(request),
        method=request.method or "",
        path=request.path,
        key=key,
        body_hash=_digest(request),
        status=response.status_code,
        body=_without(response.data, secrets),
        headers={name: response[name] for name in _KEPT_HEADERS if response.has_header(name)},
        expires_at=timezone.now() + _KEEP,
    )
    drop_expired()


def drop_expired() -> int:
    """Delete some answers past their time, more than one per stored one, so that they never pile up."""
    now = timezone.now()
    old = StoredAnswer.objects.filter(expires_at__lte=now).values("pk")[:_DROP_AT_ONCE]
    return StoredAnswer.objects.filter(pk__in=old, expires_at__lte=now).delete()[0]


def _owner(request: Request) -> str:
    token: Any = request.auth
    return f"token:{token.pk}" if token is not None else f"user:{request.user.pk}"


def _without(body: Any, secrets: Collection[str]) -> Any:
    return {n: None if n in secrets else v for n, v in body.items()} if secrets and isinstance(body, dict) else body


def _digest(request: Request) -> str:
    """Hash a body under the installation's key: it may hold a password, which nobody shall guess from the hash."""
    return hmac.new(settings.SECRET_KEY.encode(), request._request.body, hashlib.sha256).hexdigest()


def _refuse(code: str, hint: str) -> ValidationProblem:
    detail = f"{HEADER} is missing." if code == "required" else f"{HEADER} is invalid."
    return ValidationProblem(detail, errors=[FieldError(HEADER, code, detail, hint, "header")])
