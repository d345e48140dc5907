"""Refusals in the shape of the dialect that was spoken, with the request's id beside.

The rules stay the project's: the message names the field, what is wrong with it and what would be legal.
"""

from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.response import Response

from flexmarl.controlplane.common.api.exceptions import CONTENT_TYPE, problem_of
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.problems import NotFound, ProblemError, render
from flexmarl.language.dialects import messages
from flexmarl.language.dialects.calls import CallRefused
from flexmarl.language.dialects.dialect import dialect_of


def refused(error: Exception, context: dict[str, Any]) -> Response:
    """Answer an exception that a view raised."""
    request = context.get("request")
    problem = problem_of(error, request, context.get("view"))
    headers = dict(problem.headers)
    if problem.status == 401:
        headers.setdefault("WWW-Authenticate", 'Bearer realm="flexmarl"')
    path = "" if request is None else request.path
    return Response(body_of(problem, request_id_of(request), path), status=problem.status, headers=headers)


def refusal_of(problem: ProblemError) -> CallRefused:
    """Return a problem as dialects tell it."""
    first = problem.errors[0] if problem.errors else None
    hint = first.hint if first and first.hint not in problem.detail else ""
    code = first.code if first and problem.status == 400 else problem.code
    return CallRefused(
        problem.status, code, f"{problem.detail} {hint}".strip(), first.pointer.lstrip("/") if first else ""
    )


def body_of(problem: ProblemError, request_id: str, path: str = "") -> dict[str, Any]:
    """Return the body of a refusal, in the dialect of a path; without one in that of OpenAI's chats."""
    dialect = dialect_of(path)
    body = dialect.refusal(refusal_of(problem))
    if dialect is messages:
        return {**body, "request_id": request_id}
    return {"error": {**body["error"], "request_id": request_id}}


@csrf_exempt  # it changes nothing, and a refusal of the form's token would be a page
def unknown_path(request: HttpRequest, path: str = "") -> JsonResponse:
    """Answer a path that no dialect has here: a problem, with the `error` of the path's dialect beside it."""
    known = "/v1/models, /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens"
    problem = NotFound(f"There is nothing at {request.path}; available: {known}.")
    rendered = render(problem, request_id_of(request))
    body = {**rendered.body, **body_of(problem, request_id_of(request), request.path)}
    return JsonResponse(body, status=problem.status, content_type=CONTENT_TYPE)
