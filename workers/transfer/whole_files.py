"""Contents of the layout before chunks: one safetensors file and one small manifest per SHA-256 digest.

They are read under the digest they were put with, for as long as somebody claims them; nothing is put in this layout.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from workers.transfer.base import ContentManifest, CorruptState, StateMissing
from workers.transfer.files import Signature, signature

if TYPE_CHECKING:
    import torch

_HEADER_LENGTH_BYTES = 8
_META = "meta"


class _ManifestFile(msgspec.Struct):
    digest: str
    bytes: int


class WholeFiles:
    """The whole files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._verified: dict[str, Signature] = {}

    def locate(self, digest: str) -> ContentManifest | None:
        """Return the manifest when it and a payload lie here."""
        payload = self._payload(digest)
        try:
            body = msgspec.json.decode(self._manifest(digest).read_bytes(), type=_ManifestFile)
            payload.stat()
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptState(digest, f"unreadable manifest: {error}") from None
        return ContentManifest(body.digest, body.bytes, str(payload))

    def get(self, digest: str) -> "dict[str, torch.Tensor]":
        from safetensors.torch import load

        return load(self._read(digest))

    def meta(self, digest: str) -> dict[str, object]:
        payload = self._read(digest)
        length = int.from_bytes(payload[:_HEADER_LENGTH_BYTES], "little")
        header = json.loads(payload[_HEADER_LENGTH_BYTES : _HEADER_LENGTH_BYTES + length])
        described: dict[str, object] = json.loads(header["__metadata__"][_META])
        return described

    def drop(self, digest: str) -> None:
        self._manifest(digest).unlink(missing_ok=True)
        self._payload(digest).unlink(missing_ok=True)
        self._verified.pop(digest, None)

    def _read(self, digest: str) -> bytes:
        manifest = self.locate(digest)
        if manifest is None:
            raise StateMissing(digest, "no complete manifest in the local tier")
        try:
            with open(manifest.path, "rb") as file:
                before = signature(file.fileno())
                payload = file.read()
        except FileNotFoundError:
            raise StateMissing(digest, "evicted while it was read") from None
        if self._verified.get(digest) != before:
            if hashlib.sha256(payload).hexdigest() != digest:
                raise CorruptState(digest, f"{len(payload)} bytes on disk are not the {manifest.bytes} bytes put")
            self._verified[digest] = before
        return payload

    def _payload(self, digest: str) -> Path:
        return self._folder / f"{digest}.safetensors"

    def _manifest(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"
