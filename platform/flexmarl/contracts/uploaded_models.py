"""Models that somebody uploads: their files as declared, and how nodes fetch them.

Invariant: names of files have no folder and one of the endings below: none leaves its folder, and none is a pickle.
"""

import hashlib
import hmac
from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Strict

ENDINGS = (".safetensors", ".json", ".txt", ".model", ".jinja", ".md")
"""Endings of files that may be uploaded."""
FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$"
CONFIG, WEIGHTS = "config.json", ".safetensors"
PIECE_BYTES = 8 * 2**20
"""Most bytes of one piece of an upload."""
SETTING = "FLEXMARL_CONTROL_URL"
"""Base URL at which a node reaches the control plane; without it the node fetches no uploads."""


class UploadedFile(Strict):
    """A file of an upload, as it was declared."""

    name: str = Field(pattern=FILE_NAME)
    bytes: int = Field(ge=0, lt=2**63, strict=True)
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Digest of the whole file, checked when it is imported; empty: it is not."""


class UploadModel(Strict):
    """Files that were uploaded to this installation."""

    type: Literal["upload"] = "upload"
    id: str = Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
    files: tuple[UploadedFile, ...] = ()
    """Set when the import is asked for; what is written here is replaced."""


def upload_token(key: str, upload: str) -> str:
    """Return the bearer token with which nodes read one upload, by its id; `key` is the cluster's."""
    return hmac.new(key.encode(), f"upload {upload}".encode(), hashlib.sha256).hexdigest()


def upload_path(upload: str, name: str) -> str:
    """Return where the control plane serves a file of an upload to nodes."""
    return f"/nodes/uploads/{upload}/{name}"
