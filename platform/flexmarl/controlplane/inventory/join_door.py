"""`/nodes/join`: where hosts that have only the address ask to join, and hear how their request stands.

The caller names the token that it made; nothing is told but how the request of that token stands. Requests are counted
by address and are small. Nothing here opens a door of the API or of nodes.
"""

from http import HTTPStatus

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods
from pydantic import ValidationError

from flexmarl.contracts.node_joining import MOST_BYTES, NodeJoinAnswer, NodeJoinRequest
from flexmarl.controlplane.common.api.throttling import counted
from flexmarl.controlplane.common.problems import ValidationProblem
from flexmarl.controlplane.inventory import node_joins, node_tokens
from flexmarl.controlplane.inventory.node_door import NodeAnswer, refused

ASKED_A_MINUTE = 20
LOOKED_A_MINUTE = 1200
"""At most, from one address: a request is written, and looked after every five seconds by each host behind it."""
Answer = NodeAnswer | NodeJoinAnswer


@csrf_exempt  # no browser asks, and no cookie counts
@require_http_methods(["GET", "POST"])
def join(request: HttpRequest) -> HttpResponse:
    """POST takes a request, GET says how it stands; both take the token that its host made."""
    answer = _answered(request)
    if isinstance(answer, NodeJoinAnswer):
        response = HttpResponse(answer.model_dump_json(), content_type="application/json")
    else:
        response = HttpResponse(answer.body, status=answer.status, content_type=answer.kind)
    response["Cache-Control"] = "no-store"
    return response


def _answered(request: HttpRequest) -> Answer:
    address = request.META.get("REMOTE_ADDR", "")[:64]
    asks = request.method == "POST"
    limit = ASKED_A_MINUTE if asks else LOOKED_A_MINUTE
    count, ends_in_s = counted("joins" if asks else "join-looks", f"address:{address}")
    if count > limit:
        text = f"at most {limit} such requests a minute come from one address; ask again in {ends_in_s} s"
        return refused(HTTPStatus.TOO_MANY_REQUESTS, "rate_limited", text)
    named = node_tokens.pair(request.headers.get("Authorization", ""))
    if named is None:
        text = "the Authorization header must be Bearer with a token that the host has made"
        return refused(HTTPStatus.UNAUTHORIZED, "not_admitted", text)
    if not asks:
        unknown = "no request with this token waits, or it has expired; ask again with python -m workers.join"
        return node_joins.standing(*named) or refused(HTTPStatus.NOT_FOUND, "join_unknown", unknown)
    return _asked(request, named, address)


def _asked(request: HttpRequest, named: tuple[str, str], address: str) -> Answer:
    try:
        body = request.body if int(request.headers.get("Content-Length") or 0) <= MOST_BYTES else None
    except (RequestDataTooBig, ValueError):
        body = None
    if body is None or len(body) > MOST_BYTES:
        return refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "join_too_large", f"a request has at most {MOST_BYTES} bytes"
        )
    try:
        return node_joins.ask(*named, NodeJoinRequest.model_validate_json(body), address)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = "/".join(str(part) for part in first["loc"]) or "body"
        return refused(HTTPStatus.UNPROCESSABLE_ENTITY, "join_invalid", f"{place}: {first['msg']}")
    except ValidationProblem as problem:
        return refused(HTTPStatus.UNPROCESSABLE_ENTITY, "join_invalid", problem.detail)
    except node_joins.KeyTaken:
        return refused(HTTPStatus.CONFLICT, "join_key_taken", "a token with this key exists; make another one")
    except node_joins.JoiningFull:
        text = "as many requests wait as may; an administrator decides them on Pools and nodes"
        return refused(HTTPStatus.SERVICE_UNAVAILABLE, "join_full", text)
