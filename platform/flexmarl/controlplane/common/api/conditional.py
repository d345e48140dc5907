"""Entity tags: writes bound to the version that was read, and reads that are answered with 304 and no body.

A tag is `W/"<version>.<digest>"` where the object has a version, else `W/"<digest>"`. If-Match looks at the version
alone, so that a run whose figures moved can still be renamed; If-None-Match looks at the digest of what is answered, so
that nobody holds old figures for new ones. This saves the transfer, not the work.

Nothing else compares a version: views hand `if_match` to an action, which calls it under the lock of the row.
"""

from hashlib import blake2b
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.common.preconditions import Precondition
from flexmarl.controlplane.common.problems import PreconditionFailed, PreconditionRequired

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


def etag(version: int) -> str:
    """Write a version as a weak entity tag."""
    return f'W/"{version}"'


def if_match(request: Request, required: bool = False) -> Precondition:
    """Return the precondition that a request's If-Match states, for the action that locks the row."""
    given = request.headers.get("If-Match", "").strip()
    tags = {version_of(tag) for tag in given.split(",")}

    def check(version: int) -> None:
        if not given and required:
            raise PreconditionRequired(f"Send If-Match: {etag(version)} if that is what you read.")
        if given and given != "*" and str(version) not in tags:
            raise PreconditionFailed(f"The version is {version} now.", headers={"ETag": etag(version)})

    return check


def version_of(given: str) -> str:
    """Return the version that an entity tag names; empty when it names none."""
    text = _plain(given)
    return text.partition(".")[0] if "." in text or text.isdigit() or text == "*" else ""


def _plain(given: str) -> str:
    return given.strip().removeprefix("W/").strip('"')
