"""Files of an upload, fetched from the control plane that keeps them.

Invariants: a transfer that breaks off goes on at the byte where it stopped. A file counts only with exactly the bytes
that were declared, and with the digest where one was.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from flexmarl.contracts.uploaded_models import SETTING, UploadedFile, UploadModel, upload_path
from workers.models.errors import ModelRefused
from workers.models.room import check_disk, check_memory

SILENT_S = 30.0
"""A control plane that sends nothing for so long is given up."""
TRIES = 5
"""Attempts in a row that bring nothing new."""
PAUSE_S = 0.5
_PIECE = 2**20


def fetch_upload(source: UploadModel, control: str, token: str, folder: Path, memory: int) -> None:
    """Fetch an upload's files into `model` in a folder; what an earlier attempt fetched there is kept.

    `control` is the base URL of the control plane, `memory` what the largest host has in bytes, 0 where that is not
    known. Raises ModelRefused.
    """
    model = folder / "model"
    model.mkdir(exist_ok=True)
    size = sum(file.bytes for file in source.files)
    check_memory(size, memory)
    check_disk(model, size)
    for file in source.files:
        _fetch(f"{control}{upload_path(source.id, file.name)}", token, file, model / file.name)


def _fetch(url: str, token: str, file: UploadedFile, path: Path) -> None:
    tries, why = 0, ""
    with path.open("ab") as target:
        if target.tell() > file.bytes:
            target.truncate(0)
        while (got := os.fstat(target.fileno()).st_size) < file.bytes:
            why = _more(url, token, got, file.bytes - got, target)
            tries = 0 if os.fstat(target.fileno()).st_size > got else tries + 1
            if tries >= TRIES:
                text = f"{file.name} could not be fetched from the control plane: {why}; check {SETTING}"
                raise ModelRefused("upload_unreachable", text)
            if why:
                time.sleep(PAUSE_S)
    with path.open("rb") as written:
        damaged = file.sha256 and hashlib.file_digest(written, "sha256").hexdigest() != file.sha256
    if damaged:
        path.unlink()
        raise ModelRefused("upload_damaged", f"{file.name} has another SHA-256 than was declared; upload it again")


def _more(url: str, token: str, start: int, most: int, target: BinaryIO) -> str:
    """Append what comes of the rest of a file, and return why it stopped early; nothing where it did not.

    Raises ModelRefused for an upload that is gone.
    """
    request = urllib.request.Request(f"{url}?offset={start}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=SILENT_S) as answer:
            while most and (piece := answer.read(min(_PIECE, most))):
                target.write(piece)
                most -= len(piece)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.NOT_FOUND:
            raise ModelRefused("upload_gone", "the upload was deleted or has expired; upload the files again") from None
        return f"it answered with status {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        target.flush()
    return "it sent less than the file has" if most else ""
