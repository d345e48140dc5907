"""Files that appear whole or not at all, and chunk files whose bytes are their name.

Invariants: nothing is written in place, so readers need no lock; a manifest gets its final name only after its bytes,
and those of its chunks, are on disk. Chunks are flushed together when all are written, which a disk does several times
faster than one by one; one that a power failure cut short is found by its bytes: a chunk is checked on its first read
in every process, and again whenever its file has changed.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from flexmarl.host.files import NO_SPACE, WRITING, behind, drain
from workers.transfer.base import CorruptState, StateFull, StateMissing
from workers.transfer.contents import Pieces, name_of, sum_of
from workers.transfer.kernel import begin_to_write_out
from workers.transfer.mapping import MappedMemory

_AT_ONCE = 512
"""Stretches of memory per system call; the kernel takes 1024."""

Signature = tuple[int, int, int]


class ChunkFiles:
    """The chunks of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._verified: dict[str, Signature] = {}

    def path(self, name: str) -> Path:
        return self._folder / f"{name}.chunk"

    def store(self, name: str, pieces: Pieces) -> None:
        """Make a chunk lie here, not yet flushed; one that does, unharmed, is not written again."""
        if self.whole(name, sum(map(len, pieces))):
            return
        _write(self.path(name), pieces)
        with open(self.path(name), "rb") as file:
            self._verified[name] = signature(file.fileno())

    def accept(self, digest: str, name: str, pieces: Pieces) -> None:
        """Store a chunk that somebody else named. Raises CorruptState for bytes of another name."""
        if name_of(pieces) != name:
            raise CorruptState(digest, f"chunk {name[:12]} came with other bytes")
        self.store(name, pieces)

    def whole(self, name: str, size: int) -> bool:
        """Say whether a chunk lies here unharmed."""
        try:
            with open(self.path(name), "rb") as file:
                before = signature(file.fileno())
                if before[1] != size:
                    return False
                if self._verified.get(name) == before:
                    return True
                if name_of([memoryview(file.read())]) != name:
                    return False
        except OSError:
            return False
        self._verified[name] = before
        return True

    def flush(self, name: str) -> None:
        """Make a chunk lie on disk, whoever wrote it."""
        descriptor = os.open(self.path(name), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, digest: str, name: str, room: Pieces, quick: str = "") -> None:
        """Fill memory with a chunk. Raises StateMissing or CorruptState, speaking of the content it belongs to.

        Who wrote the file compared its bytes with their name; whoever reads it may compare them with a quick checksum.
        """
        with self._open(digest, name) as file:
            before = signature(file.fileno())
            if before[1] != sum(map(len, room)) or not _fill(file.fileno(), room):
                raise CorruptState(digest, f"chunk {name[:12]} has {before[1]} bytes, not {sum(map(len, room))}")
        self._check(digest, name, before, room, quick)

    def lay(self, digest: str, name: str, stretch: MappedMemory, start: int, size: int, quick: str = "") -> bool:
        """Make a chunk lie in a stretch of shared memory, checked there; False where the system does not let that be.

        Raises like `read`.
        """
        with self._open(digest, name) as file:
            before = signature(file.fileno())
            if before[1] != size:
                raise CorruptState(digest, f"chunk {name[:12]} has {before[1]} bytes, not {size}")
            if not stretch.lay(file.fileno(), start, size):
                return False
        self._check(digest, name, before, [stretch.view[start : start + size]], quick)
        return True

    def _open(self, digest: str, name: str) -> FileIO:
        try:
            return open(self.path(name), "rb", buffering=0)
        except FileNotFoundError:
            raise StateMissing(digest, f"chunk {name[:12]} is gone") from None

    def _check(self, digest: str, name: str, seen: Signature, found: Pieces, quick: str) -> None:
        """Compare bytes with their name, unless those of the same file were. Raises CorruptState."""
        if self._verified.get(name) == seen:
            return
        if not (quick and sum_of(found) == quick) and name_of(found) != name:
            raise CorruptState(digest, f"chunk {name[:12]} holds other bytes than were put")
        self._verified[name] = seen

    def drop(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)
        self._verified.pop(name, None)


def _write(path: Path, pieces: Sequence[memoryview | bytes]) -> None:
    """Write beside the target, let the disk begin with it, give the final name; flushed later, with others."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{WRITING}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            drain(descriptor, pieces)
            begin_to_write_out(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def signature(descriptor: int) -> Signature:
    """Return what changes whenever a file's content could have: inode, size, modification time."""
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def gone_is_fine() -> Iterator[None]:
    """Another process may remove a file between listing and looking at it."""
    try:
        yield
    except FileNotFoundError:
        return


@contextmanager
def full_told(digest: str, place: object) -> Iterator[None]:
    """Turn the errors of a full disk into StateFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise StateFull(digest, f"no room left in {place}") from error


def _fill(descriptor: int, room: Pieces) -> bool:
    left = [piece for piece in room if piece]
    while left:
        got = os.readv(descriptor, left[:_AT_ONCE])
        if not got:
            return False
        left = behind(left, got)
    return True
