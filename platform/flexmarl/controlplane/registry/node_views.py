"""What nodes read of uploads: bytes of one file from an offset, with the token of its upload."""

import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_GET

from flexmarl.contracts.uploaded_models import upload_token
from flexmarl.controlplane.registry import upload_folders
from flexmarl.controlplane.registry.models import ModelUpload

PIECE = 2**20


@require_GET
def upload_file(request: HttpRequest, upload_id: UUID, name: str) -> HttpResponseBase:
    """Answer with a file's bytes from `offset` on; 403 without the token, 404 for what was not declared."""
    told = request.headers.get("Authorization", "").encode()
    token = f"Bearer {upload_token(settings.CLUSTER_KEY, str(upload_id))}".encode()
    if not settings.CLUSTER_KEY or not hmac.compare_digest(told, token):
        return HttpResponse(status=403)
    upload = ModelUpload.objects.filter(pk=upload_id).first()
    offset = request.GET.get("offset", "0")
    if upload is None or name not in {file["name"] for file in upload.files} or not offset.isdecimal():
        return HttpResponse(status=404)
    size = upload_folders.received(upload_id, name)
    start = min(int(offset), size)
    answer = StreamingHttpResponse(
        _bytes_of(upload_folders.folder_of(upload_id) / name, start, size), content_type="application/octet-stream"
    )
    answer["Content-Length"] = str(size - start)
    return answer


async def _bytes_of(path: Path, start: int, size: int) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        left = size - start
        while left and (piece := await sync_to_async(file.read, thread_sensitive=False)(min(PIECE, left))):
            left -= len(piece)
            yield piece
