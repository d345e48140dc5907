"""Compressed answers and compressed request bodies.

Answers: text of 860 bytes or more is sent as gzip to clients that take it. An answer with a secret must not be packed
beside text that the caller chose, since its length would tell the secret letter by letter. So only reads are packed
(secrets are in answers to POST), not those under `SECRET_PATHS`, and no streams. Pages carry the CSRF token masked anew
in each answer, and a random file name in the gzip header makes lengths vary; Django does both. Static files are packed
once and kept.

Request bodies of the API: `Content-Encoding: gzip` is unpacked before anybody reads the body. `unpack` guarantees that
never more than `DATA_UPLOAD_MAX_MEMORY_SIZE` bytes are held, whatever the packed bytes would grow to.
"""

import gzip
import io
import zlib
from collections.abc import Awaitable, Callable
from typing import cast

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.utils.cache import patch_vary_headers
from django.utils.decorators import sync_and_async_middleware
from django.utils.regex_helper import _lazy_re_compile
from django.utils.text import compress_string

from flexmarl.controlplane.common import problems
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.problems import PayloadTooLarge, ProblemError, UnsupportedEncoding, ValidationProblem

MIN_BYTES = 860
"""Below this the answer fits one packet anyway."""
PAD = 100
"""Up to so many random bytes make the length of an answer vary."""
SECRET_PATHS = ("/settings/tokens", "/api/v1/tokens", "/api/v1/ws-tickets", "/sign-in", "/admin/")
"""Answers that may hold a secret beside text that a caller chose."""
TEXT = (
    "text/",
    "application/json",
    "application/problem+json",
    "application/x-ndjson",
    "application/javascript",
    "image/svg",
)
ACCEPTS = _lazy_re_compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?(?:\s|,|$))")
Handler = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]
_packed_files: dict[tuple[str, str], bytes] = {}
"""(path, time of change) -> packed static file; as many as there are static files."""


@sync_and_async_middleware
def compressed(get_response: Handler) -> Handler:
    """Unpack the request's body, and pack the answer's."""
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            refused = _unpack_body(request)
            return refused or pack(request, await cast("Awaitable[HttpResponseBase]", get_response(request)))

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        return _unpack_body(request) or pack(request, cast("HttpResponseBase", get_response(request)))

    return handle


def pack(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Pack an answer when the client takes gzip and nothing speaks against it."""
    kind = response.headers.get("Content-Type", "")
    if response.has_header("Content-Encoding") or not kind.startswith(TEXT):
        return response
    if isinstance(response, StreamingHttpResponse):
        return _static(request, response)
    if not isinstance(response, HttpResponse) or len(response.content) < MIN_BYTES:
        return response
    if request.method not in {"GET", "HEAD"} or request.path.startswith(SECRET_PATHS):
        return response
    patch_vary_headers(response, ("Accept-Encoding",))
    if not _takes_gzip(request):
        return response
    response.content = compress_string(response.content, max_random_bytes=PAD)
    _packed(response)
    return response


def _static(request: HttpRequest, response: StreamingHttpResponse) -> HttpResponseBase:
    """Pack a static file, once per version of it; other streams are left alone."""
    whole = response.status_code == 200 and request.method == "GET" and "Range" not in request.headers
    if not request.path.startswith(str(settings.STATIC_URL)) or response.is_async or not whole:
        return response
    patch_vary_headers(response, ("Accept-Encoding",))
    if not _takes_gzip(request):
        return response
    key = (request.path, response.headers.get("Last-Modified", ""))
    if key not in _packed_files:
        _packed_files[key] = gzip.compress(b"".join(response), 9, mtime=0)
    response.close()
    kept = {name: value for name, value in response.items() if name != "Content-Length"}
    packed = HttpResponse(_packed_files[key], headers=kept)
    _packed(packed)
    return packed


def _packed(response: HttpResponse) -> None:
    response.headers["Content-Encoding"] = "gzip"
    response.headers["Content-Length"] = str(len(response.content))
    tag = response.headers.get("ETag", "")
    if tag.startswith('"'):
        response.headers["ETag"] = f"W/{tag}"


def _takes_gzip(request: HttpRequest) -> bool:
    return bool(ACCEPTS.search(request.headers.get("Accept-Encoding", "")))


def _unpack_body(request: HttpRequest) -> HttpResponseBase | None:
    """Replace a packed body by its text. Returns a refusal when that cannot be done."""
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding in {"", "identity"} or not request.path.startswith("/api/"):
        return None
    try:
        if coding != "gzip":
            raise UnsupportedEncoding(f"Content-Encoding {coding} is not supported; send gzip or nothing.")
        body = unpack(request.body, int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE))
    except ProblemError as problem:
        rendered = problems.render(problem, request_id_of(request))
        return JsonResponse(rendered.body, status=rendered.status, content_type="application/problem+json")
    request._body = body
    request._stream = io.BytesIO(body)
    request.META["CONTENT_LENGTH"] = str(len(body))
    del request.META["HTTP_CONTENT_ENCODING"]
    return None


def unpack(packed: bytes, limit: int) -> bytes:
    """Unpack gzip. Raises ValidationProblem when it is none, PayloadTooLarge above `limit` bytes."""
    machine = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = machine.decompress(packed, limit + 1)
    except zlib.error:
        raise ValidationProblem("The body is not gzip, though Content-Encoding says so.") from None
    if len(body) > limit:
        raise PayloadTooLarge(f"The body is larger than {limit} bytes when unpacked.")
    if not machine.eof:
        raise ValidationProblem("The gzip body ends too early.")
    return body
