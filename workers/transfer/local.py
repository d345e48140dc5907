"""The local-disk tier: chunks and manifests in one folder, `<home>/state/`, shared by the processes of a host.

Invariants. What `put` has returned is durable. The manifest comes last, so a writer killed at any instruction leaves no
digest that looks whole and is not; everything is checked when it is read. Equal contents of several owners are stored
once: each owner holds a claim (an empty file), and the manifest goes with the last one. A chunk is stored once however
many contents have it; it goes with the last manifest that lists it. A writer names what it is about to write in an
intent, which counts as a manifest meanwhile. Claims, intents and removals exclude each other through one advisory lock.
"""

import contextlib
import fcntl
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flexmarl.host.files import WRITING, sync_folder, write_durably
from workers.transfer.base import (
    ContentManifest,
    CorruptState,
    Meta,
    Source,
    StateError,
    StateFull,
    StateMissing,
    Tensors,
)
from workers.transfer.contents import Description, Encoded, Pieces, decode, encode, make_room, room_in, tensors_over
from workers.transfer.files import ChunkFiles, full_told, gone_is_fine
from workers.transfer.mapping import MappedMemory
from workers.transfer.parallel import Rooms, again_and_again, in_threads
from workers.transfer.whole_files import WholeFiles

if TYPE_CHECKING:
    import torch

_DIGEST = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[a-z0-9_-]{1,100}")
INTENT = ".intent"

Fill = Callable[[int, memoryview], bool]
"""Fills memory with what a chunk of that number probably is, or says that it cannot."""
Shortcut = Callable[[str, Description], Fill | None]


class LocalTier:
    """Implements `StatePlane` on a folder."""

    def __init__(self, home: str | Path, owner: str = "local") -> None:
        if not _OWNER.fullmatch(owner):
            raise ValueError(f"owner {owner!r} must match {_OWNER.pattern}")
        self._root = Path(home) / "state"
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._owner = owner
        self.chunk_files = self._chunks = ChunkFiles(self._root)
        self._whole = WholeFiles(self._root)
        self._read: dict[str, Description] = {}
        """Manifests are immutable, so each is read once."""

    def put(self, tensors: Tensors, meta: Meta | None = None) -> ContentManifest:
        return self.store(encode(tensors, meta))

    def store(self, encoded: Encoded) -> ContentManifest:
        """Put what `encode` made: naming a content and writing it may happen apart."""

        def write(number: int) -> None:
            self._chunks.store(encoded.description.chunks[number], encoded.pieces[number])

        return self.take_in(encoded.digest, encoded.manifest, encoded.description, write)

    def take_in(
        self, digest: str, manifest: bytes, description: Description, write: Callable[[int], None]
    ) -> ContentManifest:
        """Make a content lie here by having each of its chunks written, NotYet ones behind the others; claim it.

        Raises StateFull, after which nothing of it stays, or what `write` raises; then chunks that came stay for a
        while, for whoever tries again.
        """
        with self._room(digest, description), self.intending(digest, manifest):
            again_and_again(write, range(len(description.chunks)))
            return self.complete(digest, manifest, description)

    def complete(self, digest: str, manifest: bytes, description: Description) -> ContentManifest:
        """Make durable, and readable, a content whose chunks have been written under an intent."""
        in_threads(self._chunks.flush, description.chunks)
        there = None
        with contextlib.suppress(CorruptState):  # a harmed manifest is written anew
            there = self._described(digest)
        if there is None:
            write_durably(self._manifest(digest), [manifest])
        else:
            sync_folder(self._root)  # for the claim's name
        self._read[digest] = description
        return ContentManifest(digest, description.bytes, str(self._manifest(digest)))

    def bring(self, digest: str, source: Source, shortcut: Shortcut | None = None) -> ContentManifest:
        """Make a content lie here that lies there; chunks that are here already, whole, are not fetched again, nor are
        those that a shortcut makes of what is here.

        Raises StateMissing, CorruptState or StateFull. What broke off goes on at the chunk where it stopped.
        """
        manifest = source.manifest(digest)
        description = decode(digest, manifest)
        rooms, fill = Rooms(description.chunk_bytes), shortcut and shortcut(digest, description)
        order = source.order(description.chunks)

        def write(place: int) -> None:
            number = order[place]
            name, size = description.chunks[number], description.size(number)
            if self._chunks.whole(name, size):
                return
            room = rooms.own()[:size]
            if fill is not None and fill(number, room):
                with contextlib.suppress(CorruptState):  # whatever was made is not the chunk, which the source has
                    self._chunks.accept(digest, name, [room])
                    return
            source.fetch(digest, name, room)
            self._chunks.accept(digest, name, [room])

        return self.take_in(digest, manifest, description, write)

    def description(self, digest: str) -> Description:
        """Return what is written about a content in chunks. Raises StateMissing or CorruptState."""
        found = self._described(_checked(digest))
        if found is None:
            raise StateMissing(digest, "no complete manifest in the local tier")
        return found

    def missing_bytes(self, description: Description) -> int:
        """Return how much of a content does not lie here."""
        numbers = range(len(description.chunks))
        return sum(
            description.size(number) for number in numbers if not self.chunk(description.chunks[number]).exists()
        )

    def read_chunk(self, digest: str, number: int, room: memoryview) -> None:
        """Fill memory with one chunk of a content. Raises StateMissing or CorruptState."""
        described = self.description(digest)
        self._chunks.read(digest, described.chunks[number], [room], described.sum(number))

    def newest(self) -> list[str]:
        """Return the contents that lie here, whoever keeps them, the last one first."""
        found: dict[str, float] = {}
        for path in _named(self._root, ".manifest"):
            with gone_is_fine():
                found[_digest_of(path)] = path.stat().st_mtime
        return sorted(found, key=lambda digest: -found[digest])

    def get(
        self, digest: str, device: str = "cpu", into: "Mapping[str, torch.Tensor] | None" = None
    ) -> "dict[str, torch.Tensor]":
        """Return the tensors of a digest, checked; with `into`, in memory that is there already.

        Raises StateMissing or CorruptState; `into` then holds anything.
        """
        description = self._described(digest)
        if description is None:
            tensors = self._whole.get(_checked(digest))
            for name, tensor in (into or {}).items():
                tensor.copy_(tensors[name])
        elif into is None:
            tensors, room = make_room(description)
            self._fill(digest, description, room)
        else:
            tensors = dict(into)
            self._fill(digest, description, room_in(description, into, digest))
        return tensors if device == "cpu" else {name: tensor.to(device) for name, tensor in tensors.items()}

    def mapped(self, digest: str) -> "dict[str, torch.Tensor]":
        """Return the tensors of a digest, checked, in memory that all of this host share and nobody may write to.

        Where the system does not let that be: in memory of their own. Raises like `get`.
        """
        description = self._described(digest)
        if description is None:
            return self.get(digest)
        stretch = MappedMemory(description.bytes)

        def lay(number: int) -> bool:
            start, name = number * description.chunk_bytes, description.chunks[number]
            return self._chunks.lay(digest, name, stretch, start, description.size(number), description.sum(number))

        laid = in_threads(lay, range(len(description.chunks)))
        return tensors_over(description, stretch.view) if all(laid) else self.get(digest)

    def meta(self, digest: str) -> dict[str, object]:
        description = self._described(digest)
        return self._whole.meta(_checked(digest)) if description is None else description.described

    def locate(self, digest: str) -> ContentManifest | None:
        description = self._described(digest)
        return (
            self._whole.locate(_checked(digest))
            if description is None
            else ContentManifest(digest, description.bytes, str(self._manifest(digest)))
        )

    def evict(self, digest: str) -> bool:
        with _locked(self._root):
            return self._let_go(digest)

    def collect(self, keep: Collection[str], grace_s: float) -> list[str]:
        horizon = time.time() - grace_s
        gone = [digest for digest in self.claims() if digest not in keep and self._let_go_since(digest, horizon)]
        self._sweep(horizon)
        return gone

    def claim(self, digest: str) -> bool:
        """Keep a content that another owner put; False when it is not here any more. Raises StateFull."""
        with full_told(digest, self._root), _locked(self._root):
            if self.locate(digest) is None:
                return False
            self._claim(digest).touch(mode=0o600)
            sync_folder(self._root)
        return True

    def claims(self) -> dict[str, float]:
        """Return this owner's digests with the time each was last put, oldest first."""
        found: dict[str, float] = {}
        for path in _named(self._root, f".claim.{self._owner}"):
            with gone_is_fine():
                found[_digest_of(path)] = path.stat().st_mtime
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def manifest(self, digest: str) -> bytes:
        """Return a manifest as it was put. Raises StateMissing."""
        self.description(digest)
        return self._manifest(digest).read_bytes()

    def chunk(self, name: str) -> Path:
        """Return the file of a chunk, which may not exist."""
        return self._chunks.path(_checked(name))

    def _fill(self, digest: str, description: Description, room: list[Pieces]) -> None:
        in_threads(
            lambda number: self._chunks.read(digest, description.chunks[number], room[number], description.sum(number)),
            range(len(room)),
        )

    def _described(self, digest: str) -> Description | None:
        """Return a content's manifest, None when there is none here."""
        path = self._manifest(digest)
        if digest in self._read and path.exists():
            return self._read[digest]
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            self._read.pop(digest, None)
            return None
        self._read[digest] = decode(digest, body)
        return self._read[digest]

    def _let_go_since(self, digest: str, horizon: float) -> bool:
        """Give up a claim unless it was renewed behind the horizon, as by a put since somebody looked."""
        with _locked(self._root), gone_is_fine():
            if self._claim(digest).stat().st_mtime <= horizon:
                self._let_go(digest)
                return True
        return False

    def _let_go(self, digest: str) -> bool:
        """Give up a claim, under the lock; True when nobody has another, and the content is gone."""
        self._claim(digest).unlink(missing_ok=True)
        if any(name.startswith(f"{digest}.claim.") for name in os.listdir(self._root)):
            return False
        self._forget(digest)
        return True

    def _forget(self, digest: str) -> None:
        """Drop a content that nobody claims, under the lock; its chunks unless another content has them."""
        self._whole.drop(digest)
        try:
            description = self._described(digest)
        except CorruptState:
            description = None  # its chunks are found by the next sweep
        self._manifest(digest).unlink(missing_ok=True)
        self._read.pop(digest, None)
        if description is not None:
            for name in set(description.chunks) - self._listed():
                self._chunks.drop(name)

    def _listed(self) -> set[str]:
        """Return the chunks of all contents, and of those that are being written; under the lock."""
        listed: set[str] = set()  # intents first: nobody adds one now, and one that has gone has left its manifest
        for path in _named(self._root, INTENT):
            with gone_is_fine(), _unreadable_lists_nothing():
                listed.update(decode(_digest_of(path), path.read_bytes()).chunks)
        for path in _named(self._root, ".manifest"):
            with gone_is_fine(), _unreadable_lists_nothing():
                digest = _digest_of(path)
                description = self._read.get(digest) or self._described(digest)
                listed.update(description.chunks if description else ())
        return listed

    def _sweep(self, horizon: float) -> None:
        """Remove what killed writers left: their intents at once, the bytes once they are old."""
        with _locked(self._root):
            for intent in _named(self._root, INTENT):
                _unlink_dead(intent)
            needed = {_digest_of(intent) for intent in _named(self._root, INTENT)} | self._listed()
            for left in [*_named(self._root, WRITING), *_named(self._root, ".chunk")]:
                with gone_is_fine():
                    if _digest_of(left) not in needed and left.stat().st_mtime <= horizon:
                        left.unlink()

    @contextmanager
    def _room(self, digest: str, description: Description) -> Iterator[None]:
        """Remove what a put without room has written, and say that there is none."""
        try:
            with full_told(digest, self._root):
                yield
        except StateFull:
            with _locked(self._root):
                for name in set(description.chunks) - self._listed():
                    self._chunks.drop(name)
            raise

    @contextmanager
    def intending(self, digest: str, manifest: bytes) -> Iterator[None]:
        """Claim a content and guard its chunks from removal while they are written."""
        intent = self._root / f"{_checked(digest)}.{uuid.uuid4().hex}{INTENT}"
        claim = self._claim(digest)
        with contextlib.ExitStack() as held:
            with _locked(self._root):  # so that nobody sees the intent before this writer holds it
                file = held.enter_context(open(intent, "xb", buffering=0))
                held.callback(intent.unlink, missing_ok=True)
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(manifest)
                claim.touch(mode=0o600)
            try:
                yield
            except BaseException:
                with _locked(self._root):
                    if not self._manifest(digest).exists():
                        claim.unlink(missing_ok=True)
                raise

    def _manifest(self, digest: str) -> Path:
        return self._root / f"{_checked(digest)}.manifest"

    def _claim(self, digest: str) -> Path:
        return self._root / f"{_checked(digest)}.claim.{self._owner}"


def _named(root: Path, suffix: str) -> list[Path]:
    return [root / name for name in os.listdir(root) if name.endswith(suffix)]


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    with open(root / "lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _checked(digest: str) -> str:
    """Return what may become a file's name."""
    if not _DIGEST.fullmatch(digest):
        raise StateMissing(digest, "not a digest")
    return digest


def _digest_of(path: Path) -> str:
    return path.name.partition(".")[0]


def _unlink_dead(intent: Path) -> None:
    """Remove an intent that no living writer holds."""
    with gone_is_fine(), open(intent, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        intent.unlink()


@contextmanager
def _unreadable_lists_nothing() -> Iterator[None]:
    """A manifest that cannot be read keeps no chunk: its content is lost already."""
    try:
        yield
    except (StateError, msgspec.DecodeError):
        return
