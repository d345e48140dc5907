"""Object storage, or any other file system that fsspec speaks to: contents that outlive every node.

Invariants: chunks first, the manifest last, so a content whose manifest is here was put whole; an object of another
length than its chunk's was cut short and is written anew. A file takes its name when it is whole, as an object does.
Whoever fetches checks every byte, and a manifest that is not the one of its name is as none. Collection is by
reference: one installation owns a folder and says what to keep; what it removes is older than the longest put takes.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from workers.transfer.base import ContentManifest, CorruptState, Source, StateError, StateMissing
from workers.transfer.contents import Description, Encoded, Pieces, decode
from workers.transfer.files import full_told
from workers.transfer.parallel import in_threads

T = TypeVar("T")

_MANIFEST = ".manifest"


def check_url(url: str) -> None:
    """Raise ValueError, with what is legal, for an address that no object store can have."""
    protocol, found, rest = url.partition("://")
    if not found or (not rest and protocol != "memory"):
        raise ValueError(f"{url!r} is not PROTOCOL://FOLDER, such as s3://bucket/folder or file:///mnt/share")
    if protocol not in fsspec.available_protocols():
        raise ValueError(f"{protocol!r} is not a protocol that fsspec knows, such as s3, gs, abfs or file")
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as missing:
        raise ValueError(f"{protocol!r} needs a package that is not installed here: {missing}") from None


class ObjectStore(Source):
    """A folder of an fsspec file system: keeps what is put, and is a `Source`."""

    def __init__(self, url: str, **options: Any) -> None:
        """`url` as fsspec reads it: `s3://bucket/folder`, `file:///mnt/share`, `memory://`."""
        self.name = f"object storage {url}"
        self._system, root = fsspec.core.url_to_fs(url, **options)
        self._root = root.rstrip("/")

    def store(self, encoded: Encoded) -> ContentManifest:
        """Put a content. Raises StateFull or StateError; then no manifest of it is there."""
        return self.take(encoded.digest, encoded.manifest, lambda number: encoded.pieces[number])

    def take(self, digest: str, manifest: bytes, read: Callable[[int], Pieces]) -> ContentManifest:
        """Put a content whose chunks are read as they are needed. Raises like `store`, and like `read`."""
        description = decode(digest, manifest)

        def write(number: int) -> None:
            name = description.chunks[number]
            if self._length(self._chunk(name)) != description.size(number):
                self._write(self._chunk(name), read(number))

        def put() -> ContentManifest:
            self._system.makedirs(f"{self._root}/chunks", exist_ok=True)
            in_threads(write, range(len(description.chunks)))
            self._write(self._manifest(digest), [memoryview(manifest)])
            return ContentManifest(digest, description.bytes, self._manifest(digest))

        return self._reached(digest, put)

    def belongs_to(self, installation: str) -> None:
        """Make the folder that of an installation, which alone removes anything. Raises StateError: it is another's."""
        mark = f"{self._root}/installation"

        def look() -> str:
            self._system.makedirs(self._root, exist_ok=True)
            if self._length(mark) is None:
                self._system.makedirs(f"{self._root}/chunks", exist_ok=True)
                self._write(mark, [memoryview(installation.encode())])
            found: bytes = self._system.cat_file(mark)
            return found.decode()

        if self._reached("", look) != installation:
            raise StateError("", f"{self.name} belongs to another installation; give each a folder of its own")

    def contents(self) -> set[str]:
        """Return the digests of all contents. Raises StateError."""
        return {name.removesuffix(_MANIFEST) for name in self._names(self._root) if name.endswith(_MANIFEST)}

    def whole(self) -> set[str]:
        """Return the digests of contents of which every chunk is there. Raises StateError."""
        there = self._names(f"{self._root}/chunks")
        return {digest for digest, read in self._descriptions().items() if read and there.issuperset(read.chunks)}

    def collect(self, keep: Collection[str], grace_s: float) -> list[str]:
        """Remove what is older than `grace_s` and not to be kept, and chunks that nothing lists; return the digests.

        What a content to be kept names as its base is kept as well. Raises StateError.
        """
        found = self._descriptions()
        listed = {digest: read for digest, read in found.items() if read}
        bases = {str(listed[digest].described.get("base", "")) for digest in listed if digest in keep}
        kept = {*keep, *bases}.intersection(listed)
        gone = [digest for digest in found if digest not in kept and self._old(self._manifest(digest), grace_s)]
        for digest in gone:
            self._remove(self._manifest(digest))
        needed = {name for digest in listed if digest not in gone for name in listed[digest].chunks}
        for name in self._names(f"{self._root}/chunks") - needed:
            if self._old(self._chunk(name), grace_s):
                self._remove(self._chunk(name))
        return gone

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

    def _descriptions(self) -> dict[str, Description | None]:
        """Return what each manifest says; None: it is not the one of its name."""
        found: dict[str, Description | None] = {}
        for digest in self.contents():
            with contextlib.suppress(StateMissing):  # somebody else has just removed it
                manifest = self.manifest(digest)
                try:
                    found[digest] = decode(digest, manifest)
                except CorruptState:
                    found[digest] = None
        return found

    def _write(self, path: str, pieces: Pieces) -> None:
        """Write an object: one request over a network, and no copy in between to files, which are renamed when whole.

        A writer that was killed leaves a part among the chunks, where nothing lists it.
        """
        if not isinstance(self._system, LocalFileSystem):
            self._system.pipe_file(path, b"".join(pieces))
            return
        part = self._chunk(f"{path.rpartition('/')[2]}.{secrets.token_hex(4)}.part")
        with self._system.open(part, "wb") as file:
            for piece in pieces:
                file.write(piece)
        self._system.mv(part, path)

    def _names(self, folder: str) -> set[str]:
        def look() -> set[str]:
            self._system.invalidate_cache()  # others write here
            return {str(path).rpartition("/")[2] for path in self._system.ls(folder, detail=False)}

        try:
            return self._reached("", look)
        except StateMissing:
            return set()

    def _old(self, path: str, grace_s: float) -> bool:
        try:
            made = self._reached("", lambda: self._system.modified(path))
        except StateMissing:
            return False  # somebody else has just removed it
        return bool(time.time() - made.timestamp() > grace_s)

    def _remove(self, path: str) -> None:
        with contextlib.suppress(StateMissing):
            self._reached("", lambda: self._system.rm_file(path))

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
        return f"{self._root}/{digest}{_MANIFEST}"
