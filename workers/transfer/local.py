"""The local-disk tier: one safetensors file and one manifest per digest under `<home>/state/`.

Invariants. A file gets its final name only after its bytes are on disk, and the manifest comes last, so a writer killed
at any instruction leaves no digest that looks whole and is not. A payload is never written in place; readers therefore
need no lock. The digest covers the whole payload file, description included, and is checked on the first read in every
process. Equal contents of several owners share one payload: each owner holds a claim (an empty file), and the payload
goes with the last one. Claims and removals exclude each other through one advisory lock on the folder.
"""

import fcntl
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from workers.transfer.base import CorruptState, Manifest, Meta, StateError, StateMissing, Tensors

if TYPE_CHECKING:
    import torch

_DIGEST = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[a-z0-9_-]{1,100}")
_HEADER_LENGTH_BYTES = 8
_META = "meta"
"""The one metadata key of a payload: several keys would be written in no fixed order."""


class _ManifestFile(msgspec.Struct):
    digest: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """A content with its name, not yet stored."""

    digest: str
    payload: bytes


class LocalTier:
    """Implements `StatePlane` on a folder that processes of one host share."""

    def __init__(self, home: str | Path, owner: str = "local") -> None:
        if not _OWNER.fullmatch(owner):
            raise ValueError(f"owner {owner!r} must match {_OWNER.pattern}")
        self._root = Path(home) / "state"
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._owner = owner
        self._verified: dict[str, tuple[int, int, int]] = {}

    def put(self, tensors: Tensors, meta: Meta | None = None) -> Manifest:
        return self.store(encode(tensors, meta))

    def store(self, encoded: Encoded) -> Manifest:
        """Put what `encode` made: naming a content and writing it may happen apart."""
        digest, payload = encoded.digest, encoded.payload
        manifest = Manifest(digest, len(payload), str(self._payload(digest)))
        with self._locked():
            self._claim(digest).touch(mode=0o600)
        if not self._whole(digest):
            _write_durably(self._payload(digest), payload)
            body = msgspec.json.encode(_ManifestFile(digest, len(payload)))
            _write_durably(self._manifest(digest), body)
            _sync_folder(self._root)
            self._remember(digest)
        return manifest

    def get(self, digest: str, device: str = "cpu") -> "dict[str, torch.Tensor]":
        from safetensors.torch import load

        tensors = load(self._read(digest))
        if device == "cpu":
            return tensors
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    def meta(self, digest: str) -> dict[str, object]:
        payload = self._read(digest)
        length = int.from_bytes(payload[:_HEADER_LENGTH_BYTES], "little")
        header = json.loads(payload[_HEADER_LENGTH_BYTES : _HEADER_LENGTH_BYTES + length])
        described: dict[str, object] = json.loads(header["__metadata__"][_META])
        return described

    def locate(self, digest: str) -> Manifest | None:
        return self._intact(digest)

    def evict(self, digest: str) -> bool:
        with self._locked():
            self._claim(digest).unlink(missing_ok=True)
            if any(self._root.glob(f"{digest}.claim.*")):
                return False
            self._manifest(digest).unlink(missing_ok=True)
            self._payload(digest).unlink(missing_ok=True)
        self._verified.pop(digest, None)
        return True

    def collect(self, keep: Collection[str], grace_s: float) -> list[str]:
        horizon = time.time() - grace_s
        gone = [digest for digest, since in self.claims().items() if digest not in keep and since <= horizon]
        for digest in gone:
            self.evict(digest)
        for leftover in self._root.glob("*.writing"):
            with _gone_is_fine():
                if leftover.stat().st_mtime <= horizon:
                    leftover.unlink()
        return gone

    def claim(self, digest: str) -> bool:
        """Keep a content that another owner put; False when it is not here any more."""
        with self._locked():
            if self._intact(digest) is None:
                return False
            self._claim(digest).touch(mode=0o600)
        return True

    def claims(self) -> dict[str, float]:
        """Return this owner's digests with the time each was last put, oldest first."""
        found: dict[str, float] = {}
        for path in self._root.glob(f"*.claim.{self._owner}"):
            with _gone_is_fine():
                found[path.name.partition(".")[0]] = path.stat().st_mtime
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _read(self, digest: str) -> bytes:
        """Return the payload's bytes, verified unless this process has already verified the same file."""
        manifest = self._intact(digest)
        if manifest is None:
            raise StateMissing(digest, "no complete manifest in the local tier")
        try:
            with open(manifest.path, "rb") as file:
                before = _signature(file.fileno())
                payload = file.read()
        except FileNotFoundError:
            raise StateMissing(digest, "evicted while it was read") from None
        if self._verified.get(digest) != before:
            if hashlib.sha256(payload).hexdigest() != digest:
                raise CorruptState(digest, f"{len(payload)} bytes on disk are not the {manifest.bytes} bytes put")
            self._verified[digest] = before
        return payload

    def _whole(self, digest: str) -> bool:
        """Say whether the content lies here unharmed; a harmed one is written anew by the put that asks."""
        try:
            self._read(digest)
        except StateError:
            return False
        return True

    def _intact(self, digest: str) -> Manifest | None:
        """Return the manifest when it and a payload lie here."""
        payload = self._payload(digest)
        try:
            body = msgspec.json.decode(self._manifest(digest).read_bytes(), type=_ManifestFile)
            payload.stat()
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptState(digest, f"unreadable manifest: {error}") from None
        return Manifest(body.digest, body.bytes, str(payload))

    def _remember(self, digest: str) -> None:
        with open(self._payload(digest), "rb") as file:
            self._verified[digest] = _signature(file.fileno())

    def _payload(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise StateMissing(digest, "not a SHA-256 digest")
        return self._root / f"{digest}.safetensors"

    def _manifest(self, digest: str) -> Path:
        return self._root / f"{digest}.json"

    def _claim(self, digest: str) -> Path:
        return self._root / f"{digest}.claim.{self._owner}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._root / "lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def encode(tensors: Tensors, meta: Meta | None = None) -> Encoded:
    """Render tensors as safetensors bytes that depend on names, shapes, types, values and description alone."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    described = json.dumps(meta or {}, sort_keys=True, separators=(",", ":"))
    payload = save(plain, metadata={_META: described})
    return Encoded(hashlib.sha256(payload).hexdigest(), payload)


def _write_durably(path: Path, payload: bytes) -> None:
    """Write beside the target, force to disk, then give the final name."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.writing")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(payload)
            while view:
                view = view[file.write(view) :]
            os.fsync(descriptor)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _signature(descriptor: int) -> tuple[int, int, int]:
    """Return what changes whenever a file's content could have: inode, size, modification time."""
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Another process may remove a file between listing and looking at it."""
    try:
        yield
    except FileNotFoundError:
        return
