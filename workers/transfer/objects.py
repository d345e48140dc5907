"""Object storage, or any other file system that fsspec speaks to: contents that outlive every node.

Invariants: chunks first, the manifest last, so a content whose manifest is here was put whole; an object of another
length than its chunk's was cut short and is written anew. Whoever fetches checks every byte. Nothing is collected here:
what a bucket keeps, and how long, is the bucket's own rule.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import fsspec

from workers.transfer.base import CorruptState, Manifest, StateError, StateMissing
from workers.transfer.contents import Encoded
from workers.transfer.files import full_told
from workers.transfer.parallel import in_threads

T = TypeVar("T")


class ObjectStore:
    """A folder of an fsspec file system: keeps what is put, and is a `Source`."""

    def __init__(self, url: str, **options: Any) -> None:
        """`url` as fsspec reads it: `s3://bucket/folder`, `file:///mnt/share`, `memory://`."""
        self.name = f"object storage {url}"
        self._system, root = fsspec.core.url_to_fs(url, **options)
        self._root = root.rstrip("/")

    def store(self, encoded: Encoded) -> Manifest:
        """Put a content. Raises StateFull or StateError; then no manifest of it is there."""

        def write(number: int) -> None:
            name, size = encoded.description.chunks[number], encoded.description.size(number)
            if self._length(self._chunk(name)) != size:
                self._system.pipe_file(self._chunk(name), b"".join(encoded.pieces[number]))

        def put() -> Manifest:
            self._system.makedirs(f"{self._root}/chunks", exist_ok=True)
            in_threads(write, range(len(encoded.pieces)))
            self._system.pipe_file(self._manifest(encoded.digest), encoded.manifest)
            return Manifest(encoded.digest, encoded.description.bytes, self._manifest(encoded.digest))

        return self._reached(encoded.digest, put)

    def manifest(self, digest: str) -> bytes:
        found: bytes = self._reached(digest, lambda: self._system.cat_file(self._manifest(digest)))
        return found

    def delta(self, digest: str, bases: Sequence[str], most: float) -> None:
        """Nobody computes there."""

    def fetch(self, digest: str, chunk: str, room: memoryview) -> None:
        def read() -> int:
            with self._system.open(self._chunk(chunk), "rb", block_size=len(room)) as file:
                got = 0
                while got < len(room) and (more := file.readinto(room[got:])):
                    got += more
                return got + len(file.read(1))

        if (length := self._reached(digest, read)) != len(room):
            raise CorruptState(digest, f"{self.name} has {length} bytes of {chunk[:12]} or more, not {len(room)}")

    def _length(self, path: str) -> int | None:
        try:
            size = self._system.info(path)["size"]
        except FileNotFoundError:
            return None
        return int(size)

    def _reached(self, digest: str, call: Callable[[], T]) -> T:
        try:
            with full_told(digest, self.name):
                return call()
        except FileNotFoundError:
            raise StateMissing(digest, f"{self.name} does not hold it") from None
        except OSError as error:
            raise StateError(digest, f"{self.name}: {type(error).__name__} {error}") from error

    def _chunk(self, name: str) -> str:
        return f"{self._root}/chunks/{name}"

    def _manifest(self, digest: str) -> str:
        return f"{self._root}/{digest}.manifest"
