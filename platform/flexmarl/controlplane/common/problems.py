"""Refusals as values: what went wrong, where, and a legal neighbour.

The API renders them as RFC 9457, pages as text. `code` is what clients branch on; texts may change. Every refusal of an
action is one of these exceptions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong value. `pointer` is a JSON pointer into the body, or the name of a parameter or header."""

    pointer: str
    code: str
    detail: str
    hint: str = ""
    location: str = "body"

    def as_dict(self) -> dict[str, str]:
        """Return the members of an entry of a problem's `errors`."""
        return asdict(self)


class ProblemError(Exception):
    """Base of every refusal; picklable, carries all that a client is told."""

    status = 400
    code = "bad_request"
    title = "Invalid request"

    def __init__(
        self,
        detail: str = "",
        *,
        errors: Iterable[FieldError] = (),
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.errors = tuple(errors)
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})


class ValidationProblem(ProblemError):
    code = "validation_error"
    title = "Invalid values"


class Unauthenticated(ProblemError):
    status = 401
    code = "unauthenticated"
    title = "Authentication required"


class PermissionDenied(ProblemError):
    status = 403
    code = "permission_denied"
    title = "Permission denied"


class NotFound(ProblemError):
    status = 404
    code = "not_found"
    title = "Not found"


class BadHost(ProblemError):
    code = "bad_host"
    title = "The Host header does not belong to this installation"


class MethodNotAllowed(ProblemError):
    status = 405
    code = "method_not_allowed"
    title = "Method not allowed"


class UnsupportedMediaType(ProblemError):
    status = 415
    code = "unsupported_media_type"
    title = "Unsupported media type"


class Conflict(ProblemError):
    status = 409
    code = "conflict"
    title = "Conflict with another change"


class DuplicateName(Conflict):
    code = "duplicate_name"
    title = "The name is already used"


class InvalidState(Conflict):
    """An action that the state does not allow; lists the allowed ones."""

    code = "invalid_state"
    title = "Not possible in this state"

    def __init__(self, detail: str, *, state: str, allowed_actions: Iterable[str]) -> None:
        super().__init__(detail, extra={"state": state, "allowed_actions": list(allowed_actions)})


class PlanStale(Conflict):
    """The world no longer is what a plan spoke of; lists what changed."""

    code = "plan_stale"
    title = "The plan is out of date"


class PreconditionFailed(ProblemError):
    status = 412
    code = "precondition_failed"
    title = "The object has changed since you read it"


class PreconditionRequired(ProblemError):
    status = 428
    code = "precondition_required"
    title = "Send If-Match with the version you read"


class IdempotencyMismatch(ProblemError):
    status = 422
    code = "idempotency_mismatch"
    title = "This Idempotency-Key was used with another body"


class IdempotencyInProgress(Conflict):
    code = "idempotency_in_progress"
    title = "The first request with this Idempotency-Key is still running"


class PayloadTooLarge(ProblemError):
    status = 413
    code = "payload_too_large"
    title = "The body is too large"


class UnsupportedEncoding(ProblemError):
    status = 415
    code = "unsupported_encoding"
    title = "Unsupported content encoding"


class RateLimited(ProblemError):
    status = 429
    code = "rate_limited"
    title = "Too many requests"


class Busy(ProblemError):
    status = 503
    code = "busy"
    title = "The platform is busy"


class PredictionSlow(ProblemError):
    """A plan's prediction took too long; the plan without one is still to be had."""

    status = 503
    code = "prediction_slow"
    title = "The prediction takes too long"


class DatabaseUnavailable(ProblemError):
    status = 503
    code = "database_unavailable"
    title = "The database does not respond"


class QueryTimeout(ProblemError):
    """A statement reached the time limit of what it was for."""

    status = 503
    code = "query_timeout"
    title = "The database took too long"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A problem ready to be sent."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


TYPE_BASE = "urn:flexmarl:problem:"
"""`type` of a problem is this and its code with hyphens; docs/api.md explains each code."""


def render(problem: ProblemError, request_id: str) -> Rendered:
    """Turn a problem into the members of RFC 9457 and ours."""
    body: dict[str, Any] = {
        "type": TYPE_BASE + problem.code.replace("_", "-"),
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": f"/requests/{request_id}",
        "code": problem.code,
        "request_id": request_id,
        "errors": [error.as_dict() for error in problem.errors],
        **problem.extra,
    }
    return Rendered(problem.status, body, problem.headers)
