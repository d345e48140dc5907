"""Turns every exception of an API view into an RFC 9457 problem. Also used for paths that no view serves."""

import re
from http import HTTPStatus
from typing import Any

import psycopg
import structlog
from django.conf import settings
from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.response import Response

from flexmarl.controlplane.common import database, problems
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.problems import FieldError, ProblemError

log = structlog.get_logger(__name__)
CONTENT_TYPE = "application/problem+json"
_RULES = (
    (r"Ensure this value is less than or equal to (.+?)(?:\.0)?\.", r"{name} must be at most \1."),
    (r"Ensure this value is greater than or equal to (.+?)(?:\.0)?\.", r"{name} must be at least \1."),
    (
        r"Ensure this field has no more than (\d+) (characters|elements)\.",
        r"{name} may have at most \1 \2.",
    ),
    (
        r"Ensure this field has at least (\d+) (characters|elements)\.",
        r"{name} needs \1 or more \2.",
    ),
    (r"This field is required\.", r"{name} is missing."),
    (r"This field may not be (blank|null)\.", r"{name} must not be \1."),
    (r"This list may not be empty\.", r"{name} must have at least one element."),
    (r"A valid integer is required\.", r"{name} must be a whole number, such as 1."),
    (r"A valid number is required\.", r"{name} must be a number, such as 1.5."),
    (r"Must be a valid boolean\.", r"{name} must be true or false."),
    (r"Must be a valid UUID\.", r"{name} must be an id, such as 01a22334-b872-713a-9272-1acea1b1feb5, no name or key."),
    (r"Not a valid string\.", r"{name} must be text."),
    (r'Expected a dictionary of items but got type "\w+"\.', r"{name} must be an object, such as {{}}."),
    (r"Invalid data\. Expected a dictionary, but got \w+\.", r"{name} must be an object, such as {{}}."),
    (r'Expected a list of items but got type "\w+"\.', r"{name} must be a list, such as []."),
)
"""What REST framework says of a wrong value, and the rule in our words, with the field in it."""


class InternalError(ProblemError):
    status = 500
    code = "internal_error"
    title = "The platform failed"


def problem_response(error: Exception, context: dict[str, Any]) -> Response:
    """Answer an exception raised in a view (REST framework's EXCEPTION_HANDLER)."""
    request = context.get("request")
    identity = request_id_of(request)
    problem = problem_of(error, request, context.get("view"))
    rendered = problems.render(problem, identity)
    headers = dict(rendered.headers)
    if problem.status == 401:
        headers.setdefault("WWW-Authenticate", 'Bearer realm="flexmarl"')
    return Response(rendered.body, status=rendered.status, headers=headers, content_type=CONTENT_TYPE)


@csrf_exempt  # it changes nothing, and a refusal of the form's token would be a page
def unknown_path(request: HttpRequest, path: str = "") -> JsonResponse:
    """Answer a path of the API that does not exist, whatever the method."""
    return plain_problem(request, problems.NotFound(f"Nothing exists at {request.path}."))


def plain_problem(request: HttpRequest, problem: ProblemError) -> JsonResponse:
    """Answer outside of a view: a path that nobody serves, a request that was refused before it reached one."""
    rendered = problems.render(problem, request_id_of(request))
    return JsonResponse(rendered.body, status=rendered.status, headers=rendered.headers, content_type=CONTENT_TYPE)


def speaks_problems(request: HttpRequest) -> bool:
    """Say whether an address is one of scripts: refusals there are documents, never pages."""
    return re.match(r"/(api|v1)(/|$)", request.path) is not None


def problem_of(error: Exception, request: Any, view: Any = None) -> ProblemError:
    """Return what a caller is told of an exception; a failure of ours is logged."""
    problem = _problem_of(error, view)
    if isinstance(problem, problems.QueryTimeout):
        log.warning("query_timeout", path=getattr(request, "path", ""))
    elif problem.status >= 500:
        log.error("request_failed", path=getattr(request, "path", ""), exc_info=error)
    return problem


def _problem_of(error: Exception, view: Any) -> ProblemError:
    match error:
        case ProblemError():
            return error
        case exceptions.APIException():
            return _of_framework(error, view)
        case Http404():
            return problems.NotFound()
        case DjangoPermissionDenied():
            return problems.PermissionDenied(str(error))
        case RequestDataTooBig():
            return problems.PayloadTooLarge(f"At most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes. Send it in parts.")
        case SuspiciousOperation():  # what Django refuses to read, such as a thousand parameters
            return problems.ValidationProblem(f"The request cannot be read: {error}")
        case OperationalError() | psycopg.OperationalError():
            return database.problem_of(error)
        case _:
            return InternalError("An internal error occurred. Search the logs for the request id.")


def _of_framework(error: exceptions.APIException, view: Any) -> ProblemError:
    """Say in our words what REST framework refuses by itself."""
    match error:
        case exceptions.ValidationError():
            return problems.ValidationProblem(errors=_field_errors(error.get_full_details(), ""))
        case exceptions.ParseError():
            return problems.ValidationProblem(f"The body is not JSON: {error.detail}")
        case exceptions.NotAuthenticated() | exceptions.AuthenticationFailed():
            return problems.Unauthenticated(str(error.detail))
        case exceptions.NotFound():
            return problems.NotFound()
        case exceptions.PermissionDenied():
            return problems.PermissionDenied(str(error))
        case exceptions.MethodNotAllowed():
            legal = ", ".join(getattr(view, "allowed_methods", ()))
            return problems.MethodNotAllowed(f"{error.detail} Legal: {legal}.")
        case exceptions.UnsupportedMediaType():
            legal = " or ".join(parser.media_type for parser in getattr(view, "parser_classes", ()))
            return problems.UnsupportedMediaType(f"The body must have the type {legal}.")
        case _:
            return _other(error)


def _other(error: exceptions.APIException) -> ProblemError:
    problem = ProblemError(str(error.detail))
    problem.status, problem.code = error.status_code, str(error.default_code)
    problem.title = HTTPStatus(error.status_code).phrase
    return problem


def _ruled(pointer: str, said: str) -> str:
    """Say a rule with the name of its field; what is no rule of REST framework stays as it is."""
    parts = [part for part in pointer.split("/") if part and not part.isdecimal()]
    for known, ours in _RULES:
        if parts and re.fullmatch(known, said):
            return re.sub(known, ours.format(name=parts[-1]), said)
    return said


def _field_errors(details: Any, pointer: str) -> list[FieldError]:
    """Flatten a serializer's nested errors to entries with JSON pointers."""
    if isinstance(details, dict) and "message" in details and "code" in details:
        return [FieldError(pointer, str(details["code"]), _ruled(pointer, str(details["message"])))]
    if isinstance(details, dict):
        parts = ((("" if key == "non_field_errors" else f"/{key}"), value) for key, value in details.items())
        return [entry for part, value in parts for entry in _field_errors(value, pointer + part)]
    leaf = all(isinstance(item, dict) and "message" in item for item in details)
    return [
        entry
        for index, item in enumerate(details)
        for entry in _field_errors(item, pointer if leaf else f"{pointer}/{index}")
    ]
