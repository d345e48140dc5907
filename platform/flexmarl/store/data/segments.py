"""Payloads by reference: append-only segment files, one per writer, run and epoch.

Invariants. `append` returns only after one fdatasync of everything it was given, so a row that names a payload never
precedes its bytes. What no row names (a writer that died, a refused transaction) is rubbish between or behind the
others, and goes with the file. A failed append leaves the file at its former length, or leaves the file for good when
the flush itself failed: what a kernel dropped once is never trusted again. Every read compares the digest.

A folder is known by the token in its file PLACE. `fetch` refuses one that this machine does not reach, and one that
holds another token, before it says that a file is missing.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psycopg import Connection

from flexmarl.store.errors import PayloadRefused, StoreFull

BY_VALUE_BYTES = 2048
"""Payloads up to this size stay in their rows."""
DIGEST_BYTES = 16
_OPEN_SEGMENTS = 8
_READ_AT_ONCE = 8 << 20
_HELD = re.compile(r"run-(\d+)/([0-9a-f]{16})\.segment$")
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a payload lies."""

    segment: int
    offset: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Reference:
    """A placed payload as its row tells it."""

    placed: Placed
    size: int


@dataclass(slots=True)
class _Segment:
    """An open file of this process."""

    number: int
    descriptor: int
    end: int = 0


class SegmentFolder:
    """The segment files that this process writes below one folder. Safe for several threads."""

    def __init__(self, root: Path, by_value_bytes: int = BY_VALUE_BYTES, *, durable: bool = True) -> None:
        self.root = root.resolve()
        self.by_value_bytes = by_value_bytes
        self.place = _place(self.root)
        self._durable = durable
        self._open: dict[tuple[int, int], _Segment] = {}
        self._lock = threading.Lock()

    def append(self, run_id: int, epoch: int, payloads: Sequence[bytes]) -> list[Placed]:
        """Write payloads behind each other and flush them once. Raises StoreFull; nothing was lost then."""
        digests = [digest_of(payload) for payload in payloads]
        with self._lock:
            try:
                segment = self._segment(run_id, epoch)
                start = segment.end
                self._write(run_id, epoch, segment, b"".join(payloads))
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
                raise StoreFull(str(self.root), error.strerror or "no space left") from error
        placed = []
        for payload, digest in zip(payloads, digests, strict=True):
            placed.append(Placed(segment.number, start, digest))
            start += len(payload)
        return placed

    def register(self, conn: Connection, run_id: int, epoch: int, placed: Sequence[Placed]) -> None:
        """Make segments known with the first rows that name them, in the caller's transaction."""
        conn.execute(
            """
            WITH placed AS (
              INSERT INTO store.payload_place AS p (place, host, path) VALUES (%(place)s, %(host)s, %(path)s)
              ON CONFLICT (place) DO UPDATE SET host = excluded.host, path = excluded.path, at = now()
              WHERE p.path <> excluded.path
            )
            INSERT INTO store.segment (id, run_id, epoch, place)
            SELECT number, %(run)s, %(epoch)s, %(place)s FROM unnest(%(numbers)s::bigint[]) AS number
            ON CONFLICT (id) DO NOTHING
            """,
            {
                "place": self.place, "host": socket.gethostname(), "path": str(self.root), "run": run_id,
                "epoch": epoch, "numbers": sorted({one.segment for one in placed}),
            },
        )  # fmt: skip

    def held(self) -> list[tuple[int, int]]:
        """List the files of the folder, whoever wrote them: (run, number)."""
        found = (_HELD.search(str(path)) for path in self.root.glob("run-*/*.segment"))
        return [(int(match[1]), int(match[2], 16)) for match in found if match]

    def remove(self, files: Sequence[tuple[int, int]]) -> None:
        """Remove files, and folders of runs that are empty then."""
        for run_id, number in files:
            (self.root / run_folder(run_id) / segment_file(number)).unlink(missing_ok=True)
        for run_id in {run_id for run_id, _ in files}:
            with contextlib.suppress(OSError):  # not empty: other segments of the run stay
                (self.root / run_folder(run_id)).rmdir()

    def close(self) -> None:
        """Close every file; the next append opens new ones."""
        with self._lock:
            for segment in self._open.values():
                os.close(segment.descriptor)
            self._open.clear()

    def _segment(self, run_id: int, epoch: int) -> _Segment:
        found = self._open.get((run_id, epoch))
        if found is not None:
            return found
        while len(self._open) >= _OPEN_SEGMENTS:
            os.close(self._open.pop(next(iter(self._open))).descriptor)
        number = secrets.randbits(62)
        folder = self.root / run_folder(run_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / segment_file(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if self._durable:  # a file whose name is not on the disk is not on the disk
            _sync_folder(folder)
            _sync_folder(self.root)
        self._open[(run_id, epoch)] = segment = _Segment(number, descriptor)
        return segment

    def _write(self, run_id: int, epoch: int, segment: _Segment, content: bytes) -> None:
        view, position = memoryview(content), segment.end
        try:
            while view:
                written = os.pwrite(segment.descriptor, view, position)
                view, position = view[written:], position + written
        except OSError:
            os.ftruncate(segment.descriptor, segment.end)
            raise
        try:
            if self._durable:
                os.fdatasync(segment.descriptor)
        except OSError:
            del self._open[(run_id, epoch)]
            os.close(segment.descriptor)
            raise
        segment.end = position


def fetch(conn: Connection, references: Sequence[Reference]) -> list[bytes | memoryview]:
    """Read payloads in the order asked for, each compared with its digest. Raises PayloadRefused."""
    found: list[bytes | memoryview] = [b""] * len(references)
    by_segment: dict[int, list[int]] = {}
    for index, reference in enumerate(references):
        by_segment.setdefault(reference.placed.segment, []).append(index)
    for number, path in _paths(conn, list(by_segment)).items():
        indexes = sorted(by_segment[number], key=lambda index: references[index].placed.offset)
        descriptor = _open_segment(path)
        try:
            for start, stop in _stretches([references[index] for index in indexes]):
                _read_stretch(descriptor, path, references, indexes[start:stop], found)
        finally:
            os.close(descriptor)
    return found


def digest_of(payload: bytes | memoryview) -> bytes:
    """Return the digest that a row keeps of its payload."""
    return hashlib.sha256(payload).digest()[:DIGEST_BYTES]


def run_folder(run_id: int) -> str:
    """Name the folder of a run's segments."""
    return f"run-{run_id}"


def segment_file(number: int) -> str:
    """Name the file of a segment."""
    return f"{number:016x}.segment"


def _paths(conn: Connection, numbers: list[int]) -> dict[int, Path]:
    """Find the files of segments, and make sure that this machine reaches their folders."""
    rows = conn.execute(
        """
        SELECT s.id, s.run_id, s.retired_at IS NOT NULL, p.place, p.host, p.path
        FROM store.segment s JOIN store.payload_place p USING (place) WHERE s.id = ANY(%s)
        """,
        [numbers],
    ).fetchall()
    known = {row[0] for row in rows}
    if unknown := [number for number in numbers if number not in known]:
        raise PayloadRefused("payload_missing", f"segment {unknown[0]:016x} is not registered")
    paths = {}
    for number, run_id, retired, place, host, root in rows:
        if retired:
            raise PayloadRefused("payload_retired", f"the samples of run {run_id} were retired")
        if _token(Path(root)) != place:
            raise PayloadRefused(
                "payload_unreachable",
                f"payloads of run {run_id} lie in {root} of {host}, which this machine does not reach; share the folder"
                " under the same path, or let payloads stay in their rows",
            )
        paths[number] = Path(root) / run_folder(run_id) / segment_file(number)
    return paths


def _open_segment(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise PayloadRefused("payload_missing", f"{path} is gone") from None
    except PermissionError:
        raise PayloadRefused("payload_unreachable", f"{path} may not be read by this account") from None


def _stretches(references: Sequence[Reference]) -> list[tuple[int, int]]:
    """Part references, sorted by offset, into stretches without gaps: one read each."""
    stretches, start, size = [], 0, 0
    for index, reference in enumerate(references):
        if index > start:
            former = references[index - 1]
            adjacent = former.placed.offset + former.size == reference.placed.offset
            if not adjacent or size + reference.size > _READ_AT_ONCE:
                stretches.append((start, index))
                start, size = index, 0
        size += reference.size
    return [*stretches, (start, len(references))]


def _read_stretch(
    descriptor: int,
    path: Path,
    references: Sequence[Reference],
    indexes: Sequence[int],
    found: list[bytes | memoryview],
) -> None:
    first, last = references[indexes[0]], references[indexes[-1]]
    begin = first.placed.offset
    end = last.placed.offset + last.size
    content = memoryview(_pread(descriptor, begin, end - begin))
    for index in indexes:
        reference = references[index]
        at = reference.placed.offset - begin
        payload = content[at : at + reference.size]
        if len(payload) < reference.size:
            detail = f"{path} ends at {begin + len(content)}, a payload reaches to {begin + at + reference.size}"
            raise PayloadRefused("payload_truncated", detail)
        if digest_of(payload) != reference.placed.digest:
            detail = f"{path}: the {reference.size} bytes at {reference.placed.offset} are not those that were written"
            raise PayloadRefused("payload_corrupt", detail)
        found[index] = payload


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.pread(descriptor, size, offset)
        if not piece:
            break
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _place(root: Path) -> str:
    """Read the folder's token, made by whoever comes first."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if token := _token(root):
        return token
    fresh = root / f".place-{secrets.token_hex(8)}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(16).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(fresh, root / "PLACE")
    except FileExistsError:
        pass  # another process was first: its token holds
    finally:
        fresh.unlink()
    _sync_folder(root)
    return _token(root)


def _token(root: Path) -> str:
    try:
        return (root / "PLACE").read_text()
    except OSError:
        return ""


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
