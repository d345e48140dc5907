"""Refusals in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, with the request's id beside.

The rules stay the project's: the message names the field, what is wrong with it and what would be legal.
"""

from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.response import Response

from flexmarl.controlplane.common.api.exceptions import CONTENT_TYPE, problem_of
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.problems import NotFound, ProblemError, render

KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def refused(error: Exception, context: dict[str, Any]) -> Response:
    """Answer an exception that a view raised."""
    request = context.get("request")
    problem = problem_of(error, request, context.get("view"))
    headers = dict(problem.headers)
    if problem.status == 401:
        headers.setdefault("WWW-Authenticate", 'Bearer realm="flexmarl"')
    return Response(body_of(problem, request_id_of(request)), status=problem.status, headers=headers)


def body_of(problem: ProblemError, request_id: str) -> dict[str, Any]:
    """Return the body of a refusal."""
    first = problem.errors[0] if problem.errors else None
    hint = first.hint if first and first.hint not in problem.detail else ""
    return {
        "error": {
            "message": f"{problem.detail} {hint}".strip(),
            "type": KINDS.get(problem.status, "server_error" if problem.status >= 500 else "invalid_request_error"),
            "param": first.pointer.lstrip("/") if first else None,
            "code": first.code if first and problem.status == 400 else problem.code,
            "request_id": request_id,
        }
    }


@csrf_exempt  # it changes nothing, and a refusal of the form's token would be a page
def unknown_path(request: HttpRequest, path: str = "") -> JsonResponse:
    """Answer a path that this dialect does not have here: a problem, with OpenAI's `error` beside it."""
    known = "/v1/models, /v1/chat/completions and /v1/completions"
    problem = NotFound(f"There is nothing at {request.path}; available: {known}.")
    rendered = render(problem, request_id_of(request))
    body = {**rendered.body, **body_of(problem, request_id_of(request))}
    return JsonResponse(body, status=problem.status, content_type=CONTENT_TYPE)
