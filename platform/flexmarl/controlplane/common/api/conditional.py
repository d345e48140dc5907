"""Entity tags of reads: a client that holds the newest answer is told so with 304 and no body.

A tag is `W/"<version>.<digest>"` where the object has a version, else `W/"<digest>"`. If-Match looks at the version
alone, so that a run whose figures moved can still be renamed; If-None-Match looks at the digest of what is answered, so
that nobody holds old figures for new ones. This saves the transfer, not the work.
"""

from hashlib import blake2b
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

DIGEST_BYTES = 12
KEPT = ("ETag", "Vary", "Cache-Control", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


def tag(request: Request, response: Any) -> None:
    """See to it that a read is answered with its tag, or with 304 when the caller holds it."""
    if request.method not in {"GET", "HEAD"} or not isinstance(response, Response) or response.status_code != 200:
        return
    response.headers.setdefault("Cache-Control", "private, no-cache")
    if "no-store" in response.headers["Cache-Control"]:
        return
    held = {_plain(given) for given in request.headers.get("If-None-Match", "").split(",") if given.strip()}

    def settle(rendered: Response) -> HttpResponse | None:
        digest = blake2b(rendered.content, digest_size=DIGEST_BYTES).hexdigest()
        version = version_of(rendered.headers.get("ETag", ""))
        own = f"{version}.{digest}" if version else digest
        rendered.headers["ETag"] = f'W/"{own}"'
        if own not in held and "*" not in held:
            return None
        kept = {name: rendered.headers[name] for name in KEPT if name in rendered.headers}
        return HttpResponse(status=304, headers=kept)

    response.add_post_render_callback(settle)


def version_of(given: str) -> str:
    """Return the version that an entity tag names; empty when it names none."""
    text = _plain(given)
    return text.partition(".")[0] if "." in text or text.isdigit() or text == "*" else ""


def _plain(given: str) -> str:
    return given.strip().removeprefix("W/").strip('"')
