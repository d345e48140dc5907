"""Sources that only an import may name: a repository of a model hub, and files that somebody uploads.

Invariant: names of files have no folder and one of the endings below: none leaves its folder, and none is a pickle.
"""

import hashlib
import hmac
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import Field

from flexmarl.contracts.base import Strict
from flexmarl.contracts.specification.team import FolderModel, PackageModel

ENDINGS = (".safetensors", ".json", ".txt", ".model", ".jinja", ".md")
"""Endings of files that a model may have; all others are left where they are."""
FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$"
CONFIG, WEIGHTS = "config.json", ".safetensors"
PIECE_BYTES = 8 * 2**20
"""Most bytes of one piece of an upload."""


class HubModel(Strict):
    """A repository of the model hub that the operator allowed."""

    type: Literal["hub"] = "hub"
    repository: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$",
        examples=["HuggingFaceTB/SmolLM2-135M-Instruct"],
    )
    """`owner/name`, as the hub writes it."""
    revision: str = Field(default="main", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$", examples=["main"])
    """Branch, tag or commit. The commit that it stood for is in the facts of the imported model."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["HUB_TOKEN"])
    """Name of the secret sent to the hub; its value is FLEXMARL_EXTERNAL_SECRET_<name> on the nodes. Empty: none."""


class UploadedFile(Strict):
    """A file of an upload, as it was declared."""

    name: str = Field(pattern=FILE_NAME)
    bytes: int = Field(ge=0, lt=2**63, strict=True)
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Digest of the whole file, checked when it is imported; empty: it is not."""


class UploadModel(Strict):
    """Files that were uploaded to this installation."""

    type: Literal["upload"] = "upload"
    id: UUID
    files: tuple[UploadedFile, ...] = ()
    """Set when the import is asked for; what is written here is replaced."""


ImportSource = Annotated[FolderModel | PackageModel | HubModel | UploadModel, Field(discriminator="type")]
"""Where an import may read a model from."""


def upload_token(key: str, upload: UUID) -> str:
    """Return the bearer token with which nodes read one upload; `key` is the cluster's."""
    return hmac.new(key.encode(), f"upload {upload}".encode(), hashlib.sha256).hexdigest()


def upload_path(upload: UUID, name: str) -> str:
    """Return where the control plane serves a file of an upload to nodes."""
    return f"/nodes/uploads/{upload}/{name}"


def read_address(name: str, value: str) -> str:
    """Return a base URL without its last slash, or nothing for none. Raises ValueError naming the setting."""
    try:
        url = urlsplit(value.strip())
        legal = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
        legal = legal and not (url.username or url.query or url.fragment)
    except ValueError:  # a port that is no number, or a bracket that is not closed
        legal = False
    if value.strip() and not legal:
        raise ValueError(f"{name} is not a legal address; it must look like https://host.example.org")
    return value.strip().rstrip("/")
