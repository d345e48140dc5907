"""Contents that are sent here by nodes that nobody reaches, a chunk at a time.

Invariants: nothing sent is trusted. A manifest is looked through before a chunk of it is taken, and only chunks that it
lists are, each checked by its name and written whole or not at all. The manifest comes last, so a content that broke
off is none. What is expected is held by an intent while its sender speaks; a sender that falls silent is given up, and
what came of it goes with the next sweep, unless it comes back before. Room is looked at before a chunk is asked for,
and a disk is never made low on space.
"""

import contextlib
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from flexmarl.host.backups import removals_held
from flexmarl.host.disk import DiskLevel, in_words, space
from workers.transfer.base import CorruptState, StateFull, StateMissing
from workers.transfer.contents import CHUNK_BYTES, Description, TensorEntry, decode
from workers.transfer.deltas import filling
from workers.transfer.files import full_told
from workers.transfer.local import LocalTier
from workers.transfer.parallel import Rooms, in_threads
from workers.transfer.upload_quota import ENTRY_BYTES, UploadQuota, content_bytes

log = structlog.get_logger(__name__)

OWNER = "sent"
"""Keeps what is on its way, and what nobody claims by another name yet."""
OPEN_S = 120.0
"""A sender that says nothing for so long is given up."""
UNCLAIMED_S = 3600.0
MOST_OPEN = 64
LARGEST_BYTES = 4 * 2**40
NEWEST = 4
"""Versions of a policy that stay, however large: the served one, one in flight, and two for slow readers."""
NEWEST_COUNT, NEWEST_BYTES = 12, 256 * 2**20
"""More of them stay up to this count and size."""
_NAME = re.compile(r"[0-9a-f]{64}")
_ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "int16": 2, "uint16": 2, "float16": 2,
    "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip


class NotExpected(Exception):
    """No content that is expected lists such a chunk; its sender begins again."""

    code = "not_expected"


class ContentTooLarge(Exception):
    """What is sent is larger than may be."""

    code = "too_large"


class BusyReceiving(Exception):
    """Too many contents are on their way at once."""

    code = "busy"


@dataclass
class Expected:
    """A content on its way."""

    description: Description
    sizes: Mapping[str, int]
    """Chunk -> its length."""
    counted: int
    """What it counts of its run's quota."""
    held: contextlib.ExitStack
    used: float = field(default_factory=time.monotonic)


class Receiving:
    """What is on its way to one folder. Its functions may be called from several threads."""

    def __init__(self, home: str | Path, quota_gib: int = 0) -> None:
        """A run may have so many GiB here; 0: a quarter of the disk's size."""
        self._home = Path(home)
        self._tier = LocalTier(home, OWNER)
        self._quota = UploadQuota(home, self._tier, quota_gib)
        self._unnamed: dict[str, tuple[int, int]] = {}
        """Contents that came whole and that nobody claims by another name -> their run, and what they count."""
        self._expected: dict[tuple[int, str], Expected] = {}
        self._lock = threading.Lock()

    def begin(self, run_id: int, digest: str, manifest: bytes, owner: str = "", delta: str = "") -> list[str]:
        """Return the chunks of a content that are to be sent; none once it lies here whole, claimed by its owner.

        What a delta that was sent makes of what is here is made first. Without an owner it is kept for `UNCLAIMED_S`.
        Raises CorruptState for what is no manifest of that name, ContentTooLarge, QuotaReached, StateFull,
        BusyReceiving.
        """
        description = sound(digest, manifest)
        expected = self._expect(run_id, digest, manifest, description)
        missing = self._lacking(description)
        if missing and delta:
            self.check_room(digest, sum(description.size(number) for number in missing))
            self._make(digest, description, missing, delta)
            missing = self._lacking(description)
        expected.used = time.monotonic()
        if missing:
            self.check_room(digest, sum(description.size(number) for number in missing))
            return list(dict.fromkeys(description.chunks[number] for number in missing))
        self._tier.complete(digest, manifest, description)
        if owner:
            if not LocalTier(self._home, owner).claim(digest):
                raise StateMissing(digest, "it went while it was claimed")
            self._let_go(run_id, digest)
            self._tier.evict(digest)
        else:
            self._unnamed[digest] = (run_id, expected.counted)
            self._let_go(run_id, digest)
        log.info("received", digest=digest, bytes=description.bytes, run_id=run_id)
        return []

    def size(self, run_id: int, digest: str, name: str) -> int:
        """Return the length of a chunk that may be sent. Raises NotExpected."""
        expected = self._expected.get((run_id, digest))
        if expected is None or name not in expected.sizes:
            raise NotExpected(f"no chunk {name[:12]} of {digest[:12]} is expected; send its manifest first")
        expected.used = time.monotonic()
        return expected.sizes[name]

    def take(self, run_id: int, digest: str, name: str, body: memoryview) -> None:
        """Write a chunk. Raises NotExpected, CorruptState for other bytes than its name says, StateFull."""
        size = self.size(run_id, digest, name)
        if len(body) != size:
            raise CorruptState(digest, f"chunk {name[:12]} came with {len(body)} bytes, not {size}")
        self.check_room(digest, size)
        self._accept(digest, name, body)

    def check_room(self, digest: str, size: int) -> None:
        """Raise StateFull where so many bytes more would make the disk low on space."""
        found = space(self._home)
        if replace(found, free=found.free - size).level is not DiskLevel.OK:
            raise StateFull(digest, f"no room for {in_words(size)} more: {in_words(found.free)} are free")

    def check_folder(self, run_id: int, digest: str) -> None:
        """Raise QuotaReached or StateFull where a folder made of a content would not fit, StateMissing."""
        size = sum(max(math.prod(entry.shape), ENTRY_BYTES) for entry in self._tier.description(digest).tensors)
        self._quota.check(run_id, digest, size, self._unclaimed(run_id))
        self.check_room(digest, size)

    def drop(self, digest: str) -> None:
        """Let go of what nobody claims by another name."""
        self._unnamed.pop(digest, None)
        self._tier.evict(digest)

    def trim(self, owner: str, least: int = NEWEST, most: int = NEWEST_COUNT) -> None:
        """Let go of contents that an owner had sent and nobody asks for any more: all but the newest.

        `least` of them stay however large, and up to `most` within `NEWEST_BYTES`.
        """
        if removals_held(self._home):
            return
        tier, size = LocalTier(self._home, owner), 0
        for count, digest in enumerate(reversed(tier.claims()), 1):
            found = tier.locate(digest)
            size += found.bytes if found else 0
            if count > least and (count > most or size > NEWEST_BYTES):
                tier.evict(digest)

    def tend(self) -> None:
        """Give up senders that are silent, and what nobody has claimed."""
        silent = time.monotonic() - OPEN_S
        for run_id, digest in [key for key, one in list(self._expected.items()) if one.used < silent]:
            log.warning("given up", digest=digest, run_id=run_id)
            self._let_go(run_id, digest)
            if self._tier.locate(digest) is None:
                self._tier.evict(digest)
        if removals_held(self._home):
            return
        if any(since < time.time() - UNCLAIMED_S for since in self._tier.claims().values()):
            for digest in self._tier.collect({digest for _, digest in self._expected}, UNCLAIMED_S):
                self._unnamed.pop(digest, None)

    def close(self) -> None:
        """Expect nothing any more."""
        for run_id, digest in list(self._expected):
            self._let_go(run_id, digest)

    def _lacking(self, description: Description) -> list[int]:
        """Return the numbers of chunks that do not lie here unharmed."""
        files, numbers = self._tier.chunk_files, range(len(description.chunks))
        whole = in_threads(lambda number: files.whole(description.chunks[number], description.size(number)), numbers)
        return [number for number, here in zip(numbers, whole, strict=True) if not here]

    def _accept(self, digest: str, name: str, body: memoryview) -> None:
        """Write a chunk, which an intent lists. Raises CorruptState for other bytes than its name says, StateFull."""
        with full_told(digest, self._home):
            self._tier.chunk_files.accept(digest, name, [body])

    def _make(self, digest: str, description: Description, missing: Sequence[int], delta: str) -> None:
        """Make chunks of a content by a delta; those that it does not make are sent."""
        rooms = Rooms(description.chunk_bytes)

        def make(number: int) -> None:
            room = rooms.own()[: description.size(number)]
            if fill is not None and fill(number, room):
                with contextlib.suppress(CorruptState):  # whatever was made is not the chunk
                    self._accept(digest, description.chunks[number], room)

        try:
            fill = filling(self._tier, delta, digest)
            in_threads(make, missing)
        except (StateMissing, CorruptState) as error:
            log.warning("a delta makes nothing", digest=digest, error=str(error))
        self.drop(delta)

    def _expect(self, run_id: int, digest: str, manifest: bytes, description: Description) -> Expected:
        with self._lock:
            if (known := self._expected.get((run_id, digest))) is not None:
                return known
            if len(self._expected) >= MOST_OPEN:
                raise BusyReceiving(f"{MOST_OPEN} contents are on their way; try again in a moment")
            counted = content_bytes(description.bytes, len(manifest))
            unclaimed = self._unclaimed(run_id)
            if digest not in unclaimed and digest not in self._quota.claimed(run_id):
                self._quota.check(run_id, digest, counted, unclaimed)
            held = contextlib.ExitStack()
            held.enter_context(self._tier.intending(digest, manifest))
            sizes = {name: description.size(number) for number, name in enumerate(description.chunks)}
            expected = self._expected[run_id, digest] = Expected(description, sizes, counted, held)
            return expected

    def _unclaimed(self, run_id: int) -> dict[str, int]:
        """Return what came for a run, or is on its way, with what it counts."""
        came = {digest: counted for digest, (run, counted) in list(self._unnamed.items()) if run == run_id}
        return came | {digest: one.counted for (run, digest), one in list(self._expected.items()) if run == run_id}

    def _let_go(self, run_id: int, digest: str) -> None:
        with self._lock:
            expected = self._expected.pop((run_id, digest), None)
        if expected is not None:
            expected.held.close()


def sound(digest: str, manifest: bytes) -> Description:
    """Read a manifest from elsewhere. Raises ContentTooLarge, or CorruptState for one that follows no layout of ours.

    Readers take memory and offsets from a manifest, so its numbers must fit each other.
    """
    found = decode(digest, manifest)
    if found.bytes > LARGEST_BYTES:
        raise ContentTooLarge(f"a content has at most {LARGEST_BYTES} bytes, not {found.bytes}")
    fits = (
        found.chunk_bytes == CHUNK_BYTES
        and found.bytes >= 0
        and len(found.chunks) == -(-found.bytes // found.chunk_bytes)
        and len(found.sums) in {0, len(found.chunks)}
        and all(_NAME.fullmatch(name) for name in found.chunks)
        and all(_inside(entry, found.bytes) for entry in found.tensors)
    )
    if not fits:
        raise CorruptState(digest, "the manifest's numbers do not fit each other")
    return found


def _inside(entry: TensorEntry, size: int) -> bool:
    """Tell whether a tensor is of a known type and lies inside a payload."""
    if entry.dtype not in _ITEM_BYTES or entry.start < 0 or any(length < 0 for length in entry.shape):
        return False
    return entry.start + math.prod(entry.shape) * _ITEM_BYTES[entry.dtype] <= size
