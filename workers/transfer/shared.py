"""Host memory for suspended states: whole files in a memory file system, mapped; one per state.

Invariants. A state lives as long as the process that suspended it, and not longer: whoever opens the tier next removes
what owners left whose locks nobody holds any more. Its manifest comes last, with a checksum per chunk, and each is
checked when the state is read: nothing half written is ever resumed. Room is taken before anything is written: a full
memory file system is an error that is told (StateFull), never a signal that kills. Memory of states that are gone is
kept for the next one, up to `limit_bytes` in all: touching fresh memory costs several times a copy. Checksums are XXH3,
not names: they tell damage and leave the copy its speed, and nothing here goes by content or leaves the host.
"""

import contextlib
import fcntl
import mmap
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import numpy as np
import xxhash

from workers.transfer.base import CorruptState, Meta, StateFull, StateMissing, Tensors
from workers.transfer.contents import Description, Pieces, describe, make_room, room_in
from workers.transfer.files import full_told, gone_is_fine
from workers.transfer.parallel import in_threads

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 4 * 2**20
"""Large enough that the interpreter costs little beside the copy, small enough to share out among threads."""
PER_TASK = 4
"""Chunks that one thread takes at a time."""
MEMORY = Path("/dev/shm")
_FILE = re.compile(r"[0-9a-f]{32}\.(?P<owner>[0-9a-f]{32})\.\w+")


@dataclass(slots=True)
class _Room:
    """A file of this process with its mapping."""

    path: Path
    size: int
    mapped: mmap.mmap
    view: "np.ndarray[tuple[int], np.dtype[np.uint8]]"


class SharedMemory:
    """Suspended states of one home folder in host memory."""

    name = "host_memory"
    copies = True
    reach = "host"

    def __init__(self, home: str | Path, limit_bytes: int, folder: Path = MEMORY) -> None:
        self._root = _folder(home, folder)
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._limit = limit_bytes
        self._owner = uuid.uuid4().hex
        self._living: BinaryIO | None = None
        """The owner's lock, which the kernel lets go of when the process ends."""
        self._rooms: dict[str, _Room] = {}
        self._free: list[_Room] = []
        self.sweep()

    def put(self, tensors: Tensors, meta: Meta) -> tuple[str, int]:
        """Copy a state here; return its name and length. Raises StateFull."""
        name = uuid.uuid4().hex
        description, chunks = describe(tensors, meta, CHUNK_BYTES)
        room = self._take(name, description.bytes)
        try:
            sums = _over(range(len(chunks)), lambda number: _copy_out(chunks[number], room.view, number * CHUNK_BYTES))
            whole = msgspec.structs.replace(description, chunks=tuple(sums))
            written = self._manifest(name).with_suffix(".writing")
            with full_told(name, self._root):
                written.write_bytes(msgspec.json.encode(whole))
            written.rename(self._manifest(name))
        except BaseException:
            self._give_back(name)
            raise
        return name, description.bytes

    def get(
        self, name: str, into: "Mapping[str, torch.Tensor] | None" = None
    ) -> "tuple[dict[str, torch.Tensor], dict[str, object]]":
        """Return a state's tensors, copied, and its description. Raises StateMissing or CorruptState."""
        description = self._described(name)
        tensors, chunks = make_room(description) if into is None else (dict(into), room_in(description, into, name))
        with self._open(name, description.bytes) as view:
            sums = _over(range(len(chunks)), lambda number: _copy_in(view, number * CHUNK_BYTES, chunks[number]))
        if tuple(sums) != description.chunks:
            raise CorruptState(name, "host memory holds other bytes than were put")
        return tensors, description.described

    def marks(self, name: str) -> dict[str, object]:
        """Return a state's description. Raises StateMissing or CorruptState."""
        return self._described(name).described

    def drop(self, name: str) -> None:
        """Let a state go; its memory is used again by the process that made it."""
        for path in self._root.glob(f"{name}.*.manifest"):
            path.unlink(missing_ok=True)
        self._give_back(name)

    def sweep(self) -> None:
        """Remove what processes left that are dead."""
        _sweep(self._root, self._owner)

    def close(self) -> None:
        """Give all memory of this process back."""
        for room in [*self._rooms.values(), *self._free]:
            _unmap(room)
        for path in self._root.glob(f"*.{self._owner}.*"):
            path.unlink(missing_ok=True)
        self._rooms.clear()
        self._free.clear()
        if self._living is not None:
            _lock_of(self._root, self._owner).unlink(missing_ok=True)
            self._living.close()
            self._living = None
        with contextlib.suppress(OSError):  # others have states here
            self._root.rmdir()

    @property
    def held_bytes(self) -> int:
        """Memory of all files of the home, of this process and of others."""
        total = 0
        with gone_is_fine():
            for path in self._root.iterdir():
                with gone_is_fine():
                    total += path.stat().st_size
        return total

    def _take(self, name: str, size: int) -> _Room:
        """Return memory for a state: used before where there is some of fitting size, else new within the limit."""
        for other in [own for own in self._rooms if not self._manifest(own).exists()]:
            self._give_back(other)  # another process took it up, and let it go
        fitting = [room for room in self._free if size <= room.size <= 2 * size]
        if fitting:
            room = min(fitting, key=lambda each: each.size)
            self._free.remove(room)
            room.path = room.path.rename(self._payload(name))
        else:
            while self._free and self.held_bytes + size > self._limit:
                _unmap(self._free.pop(0))
            if self.held_bytes + size > self._limit:
                raise StateFull(name, f"{size} bytes are more than is left of the {self._limit} for suspended states")
            room = self._make(name, size)
        self._rooms[name] = room
        return room

    def _make(self, name: str, size: int) -> _Room:
        path = self._payload(name)
        self._live()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with full_told(name, self._root):
                os.posix_fallocate(descriptor, 0, max(1, size))
            mapped = mmap.mmap(descriptor, max(1, size), flags=mmap.MAP_SHARED)  # touched by several threads
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        return _Room(path, max(1, size), mapped, np.frombuffer(mapped, dtype=np.uint8))

    def _live(self) -> None:
        """Say that the owner of what is written next is alive, for as long as it is."""
        if self._living is None:
            self._root.mkdir(mode=0o700, exist_ok=True)  # it goes when it is empty
            with _alone(self._root):
                self._living = open(_lock_of(self._root, self._owner), "xb")  # noqa: SIM115 - held until `close`
                fcntl.flock(self._living, fcntl.LOCK_EX)

    def _give_back(self, name: str) -> None:
        """Keep a state's memory for the next one. That of another process is left to it: it knows by the manifest."""
        room = self._rooms.pop(name, None)
        if room is not None:
            self._free.append(room)

    def _described(self, name: str) -> Description:
        found = list(self._root.glob(f"{name}.*.manifest"))
        try:
            return msgspec.json.decode(found[0].read_bytes(), type=Description)
        except (IndexError, FileNotFoundError):
            raise StateMissing(name, "host memory does not hold it") from None
        except msgspec.DecodeError as error:
            raise CorruptState(name, f"unreadable manifest: {error}") from None

    @contextmanager
    def _open(self, name: str, size: int) -> "Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]":
        """Give the memory of a state, of this process or of another."""
        own = self._rooms.get(name)
        if own is not None:
            yield own.view
            return
        try:
            [path] = self._root.glob(f"{name}.*.payload")
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size < size:
                    raise CorruptState(name, "its file is shorter than the state")
                mapped = mmap.mmap(file.fileno(), max(1, size), flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (ValueError, FileNotFoundError):
            raise StateMissing(name, "its owner has just let it go") from None
        yield np.frombuffer(mapped, dtype=np.uint8)

    def _payload(self, name: str) -> Path:
        return self._root / f"{name}.{self._owner}.payload"

    def _manifest(self, name: str) -> Path:
        return self._root / f"{name}.{self._owner}.manifest"


def sweep(home: str | Path, folder: Path = MEMORY) -> None:
    """Give the memory of suspended states back whose process is dead."""
    if (root := _folder(home, folder)).is_dir():
        _sweep(root, "")
        with contextlib.suppress(OSError):  # somebody alive has states here
            root.rmdir()


def _sweep(root: Path, own: str) -> None:
    with _alone(root):
        named = {path: found["owner"] for path in root.iterdir() if (found := _FILE.fullmatch(path.name))}
        for owner in set(named.values()) - {own}:
            if _dead(root, owner):
                for path in [path for path in named if named[path] == owner]:
                    path.unlink(missing_ok=True)
                _lock_of(root, owner).unlink(missing_ok=True)


def _dead(root: Path, owner: str) -> bool:
    """Tell whether nobody holds an owner's lock: process ids mean nothing to whoever lives in another namespace."""
    try:
        with open(_lock_of(root, owner), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _lock_of(root: Path, owner: str) -> Path:
    return root / f"{owner}.alive"


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Keep others from looking for dead owners meanwhile: one is born."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _folder(home: str | Path, folder: Path) -> Path:
    mark = xxhash.xxh3_64_hexdigest(str(Path(home).resolve()).encode())
    return folder / f"flexmarl-{os.getuid()}-{mark}"


def _over(numbers: range, copy: Callable[[int], str]) -> list[str]:
    """Copy chunks by several threads; return their checksums in order."""
    parts = [numbers[start : start + PER_TASK] for start in range(0, len(numbers), PER_TASK)]
    return [each for part in in_threads(lambda own: [copy(number) for number in own], parts) for each in part]


def _copy_out(chunk: Pieces, view: "np.ndarray[tuple[int], np.dtype[np.uint8]]", start: int) -> str:
    hasher = xxhash.xxh3_128()
    for piece in chunk:
        hasher.update(piece)
        np.copyto(view[start : start + len(piece)], np.frombuffer(piece, dtype=np.uint8))
        start += len(piece)
    return hasher.hexdigest()


def _copy_in(view: "np.ndarray[tuple[int], np.dtype[np.uint8]]", start: int, chunk: Pieces) -> str:
    hasher = xxhash.xxh3_128()
    for piece in chunk:
        part = view[start : start + len(piece)]
        hasher.update(part.data)
        np.copyto(np.frombuffer(piece, dtype=np.uint8), part)
        start += len(piece)
    return hasher.hexdigest()


def _unmap(room: _Room) -> None:
    room.path.unlink(missing_ok=True)
    room.view = room.view[:0].copy()
    room.mapped.close()
